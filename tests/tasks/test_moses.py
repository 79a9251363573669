"""The metrics of MOSES, properties and drawings of molecules.

The numbers of REFERENCE are those of the reference implementation, molsets 0.3.1, of the same molecules:
`python -m benchmarks moses_reference` prints them.
"""

import math
import pickle
import sys
import zipfile
from collections import Counter
from importlib.util import find_spec

import numpy as np
import pytest
from rdkit import Chem, DataStructs
from rdkit.Chem import rdFingerprintGenerator
from scipy.linalg import sqrtm

from tauflow.errors import SettingsError
from tauflow.tasks.molecules.chemistry import canonical, dataset, draw, properties
from tauflow.tasks.molecules.moses import Filters, Fingerprints, Reference, frechet, moses_metrics

GENERATED = """
CC(=O)Oc1ccccc1C(=O)O
CC(C)Cc1ccc(C(C)C(=O)O)cc1
OC(=O)C(C)c1ccc(CC(C)C)cc1
CC(=O)Nc1ccc(O)cc1
Cn1c(=O)c2c(ncn2C)n(C)c1=O
c1ccccc1(
CN1CCC[C@H]1c1cccnc1
O=C(O)c1ccccc1O

CC(C)NCC(O)COc1ccc(CCOC)cc1
CC(C)NCC(O)COc1cccc2ccccc12
C1CC1C2
CN(C)CCCN1c2ccccc2CCc2ccccc21
CNCCC(Oc1ccc(C(F)(F)F)cc1)c1ccccc1
CN1C(=O)CN=C(c2ccccc2)c2cc(Cl)ccc21
Cc1ccc(-c2cc(C(F)(F)F)nn2-c2ccc(S(N)(=O)=O)cc2)cc1
CC(C)(C)NCC(O)c1ccc(O)c(CO)c1
c1cccn1
CCN(CC)CCNC(=O)c1ccc(N)cc1
CCN(CC)CC(=O)Nc1c(C)cccc1C
[Na+].CC(=O)[O-]
C[N+](C)(C)CCO
O=[N+]([O-])c1ccc(Cl)cc1
O=C1CCC(N2C(=O)c3ccccc3C2=O)C(=O)N1
CC1(C)SC2C(NC(=O)Cc3ccccc3)C(=O)N2C1C(=O)O
CN1C2CCC1CC(OC(=O)C(CO)c1ccccc1)C2
CC(=O)Oc1ccccc1C(=O)O
C1CCCCCCC1
C=CC(=O)Nc1ccccc1
O=C1NC(=S)SC1=Cc1ccccc1
O=S(=O)(c1ccccc1)N1CCOCC1
""".strip().split("\n")
TEST = [
    "COc1ccc2[nH]cc(CCNC(C)=O)c2c1",
    "CC(C)NCC(O)COc1ccc(CC(N)=O)cc1",
    "CN(C)CCc1c[nH]c2ccc(CS(=O)(=O)N3CCCC3)cc12",
    "Clc1ccc(C(c2ccccc2)N2CCN(CCOCC(=O)O)CC2)cc1",
    "CCOC(=O)N1CCC(=C2c3ccc(Cl)cc3CCc3cccnc32)CC1",
    "CNC1CCC(c2ccc(Cl)c(Cl)c2)c2ccccc21",
    "CN(C)CCCC1(c2ccc(F)cc2)OCc2cc(C#N)ccc21",
    "CC(Cc1ccccc1)NC",
    "Cc1ccccc1C(=O)O",
    "COc1cc2c(cc1OC)CC(Cc1ccncc1)C2=O",
    "CCC(=O)N(c1ccccc1)C1CCN(CCc2ccccc2)CC1",
    "CC(=O)Nc1ccccc1",
    "Cn1cnc2c1c(=O)[nH]c(=O)n2C",
    "CN1CCN(C2=Nc3ccccc3Oc3ccc(Cl)cc32)CC1",
    "Nc1ccc(S(=O)(=O)Nc2ncccn2)cc1",
    "COCCc1ccc(OCC(O)CNC(C)C)cc1",
    "O=C(O)Cc1ccccc1Nc1c(Cl)cccc1Cl",
    "CC(C)Cc1ccc(C(C)C(=O)O)cc1",
    "COc1ccc2cc(C(C)C(=O)O)ccc2c1",
    "Cc1cc(NS(=O)(=O)c2ccc(N)cc2)no1",
]
SCAFFOLDS = [
    "Fc1ccc(C2CCNCC2COc2ccc3c(c2)OCO3)cc1",
    "CN1CCC(=C2c3ccccc3CCc3ccccc32)CC1",
    "COc1cccc(C2(O)CCCCC2CN(C)C)c1",
    "O=C(c1ccccc1)N1CCOCC1",
    "CCOc1ccc2nc(S(N)(=O)=O)sc2c1",
    "Cc1nnc2n1-c1ccc(Cl)cc1C(c1ccccc1)=NC2",
    "CC1(C)SC2C(NC(=O)Cc3ccccc3)C(=O)N2C1C(=O)O",
]
TRAIN = ["CC(=O)Oc1ccccc1C(=O)O", "Cn1c(=O)c2c(ncn2C)n(C)c1=O", "CC(C)Cc1ccc(C(C)C(=O)O)cc1", "CCCCO"]
REFERENCE = {
    "valid": 0.8709677419354839,
    "unique@10": 0.9,
    "unique@30": 0.9259259259259259,
    "FCD/Test": 33.4613202444546,
    "SNN/Test": 0.38158875496851075,
    "Frag/Test": 0.708935477641723,
    "Scaf/Test": 0.15430334996209194,
    "FCD/TestSF": 47.457890613231164,
    "SNN/TestSF": 0.24132581041366966,
    "Frag/TestSF": 0.4909008113227936,
    "Scaf/TestSF": 0.10910894511799618,
    "IntDiv": 0.8413432151365345,
    "IntDiv2": 0.7553100544467887,
    "Filters": 0.7777777777777778,
    "logP": 0.8698437777777785,
    "SA": 0.23766523460399988,
    "QED": 0.08900518004028433,
    "weight": 47.98271296296299,
    "Novelty": 0.88,
}

MOLSETS = find_spec("moses") is not None


@pytest.fixture(scope="module")
def test_set():
    return Reference.of(TEST)


def metrics_of(generated, test, **options):
    return moses_metrics(generated, None, test, unique_at=(1,), **options)


def test_equal_to_the_reference_implementation(test_set):
    """FCD to 1e-3; the rest but for the rounding of float32, in which similarities are."""
    filters = Filters.shipped() if MOLSETS else None
    scaffolds = Reference.of(SCAFFOLDS)
    with pytest.warns(UserWarning, match="unique@30 is of 27 valid molecules only"):
        found = moses_metrics(GENERATED, set(TRAIN), test_set, scaffolds, filters, (10, 30))
    expected = REFERENCE if MOLSETS else {k: v for k, v in REFERENCE.items() if k != "Filters"}
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-3 if "FCD" in name else 1e-6), name


def test_canonical(capfd):
    assert canonical("OCC") == canonical("C(O)C") == "CCO"
    assert canonical("[Na+].[O-]C(C)=O") == "CC(=O)[O-].[Na+]"
    for wrong in ("", " ", "CCO name", "CCO\n", "C1CC", "c1cccn1", "C(C)(C)(C)(C)C", "?", "(" * 3000):
        assert canonical(wrong) is None
    assert capfd.readouterr() == ("", "")  # RDKit is silenced here
    Chem.MolFromSmiles("C1CC")
    assert "unclosed ring" in capfd.readouterr().err  # and elsewhere it is not


def test_properties_of_aspirin():
    """As PubChem and RDKit's documentation give them; the accessibility is that of Ertl's scorer."""
    found = properties(["CC(=O)Oc1ccccc1C(=O)O", "C"])
    assert found["weight"] == pytest.approx([180.159, 16.043], abs=1e-3)
    assert found["logp"][0] == pytest.approx(1.3101, abs=1e-4)
    assert found["qed"][0] == pytest.approx(0.5501, abs=1e-4)
    assert found["sa"][0] == pytest.approx(1.580, abs=1e-3)
    assert {len(properties([])[name]) for name in found} == {0}
    with pytest.raises(SettingsError, match="'C1CC' isn't a valid molecule"):
        properties(["C", "C1CC"])


def test_similarities_equal_those_of_rdkit():
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=1024)
    left, right = [[Chem.MolFromSmiles(text) for text in texts] for texts in (TEST, SCAFFOLDS)]
    bits = [[generator.GetFingerprint(each) for each in side] for side in (left, right)]
    table = np.array([DataStructs.BulkTanimotoSimilarity(each, bits[0]) for each in bits[1]])  # (M, N)
    own = np.array([DataStructs.BulkTanimotoSimilarity(each, bits[0]) for each in bits[0]])
    found = Fingerprints.of(left)
    assert found.nearest(Fingerprints.of(right)) == pytest.approx(table.max(1), abs=1e-6)
    expected = 1 - own.mean(), 1 - np.sqrt((own**2).mean(1)).mean()
    assert found.diversity() == pytest.approx(expected, abs=1e-6)


def test_similarities_of_many_bits():
    """More bits than a byte can count."""
    full, half = np.full((1, 128), 255, np.uint8), np.repeat(np.array([[255, 0]], np.uint8), 64)[None]
    both = Fingerprints(np.concatenate([full, half]))
    assert both.nearest(Fingerprints(full)).tolist() == [1.0]
    assert Fingerprints(half).nearest(Fingerprints(full)).tolist() == [0.5]


def test_frechet_distance():
    generator = np.random.default_rng(0)
    mean, other = generator.normal(size=(2, 5))
    first, second = [each @ each.T for each in generator.normal(size=(2, 5, 5))]
    flat = np.diag([4.0, 1.0, 9.0, 0.0, 1.0]), np.diag([1.0, 1.0, 4.0, 1.0, 0.0])
    assert frechet(mean, flat[0], mean, flat[1]) == pytest.approx(1 + 0 + 1 + 1 + 1)  # of the deviations
    expected = ((mean - other) ** 2).sum() + np.trace(first + second - 2 * sqrtm(first @ second).real)
    assert frechet(mean, first, other, second) == pytest.approx(expected)
    assert frechet(mean, first, mean, first) == pytest.approx(0, abs=1e-9)


def test_metrics_by_hand():
    """One ring alone, as that of benzene, is no scaffold here."""
    test = Reference.of(["c1ccc(-c2ccccc2)cc1", "Cc1ccc(-c2ccccc2)cc1", "c1ccc(Cc2ccccc2)cc1"])
    assert test.scaffolds == Counter({"c1ccc(-c2ccccc2)cc1": 2, "c1ccc(Cc2ccccc2)cc1": 1})
    found = metrics_of(["c1ccc(-c2ccccc2)cc1", "c1ccccc1", "CCc1ccc(Cc2ccccc2)cc1"], test)
    assert found["Scaf/Test"] == pytest.approx((2 + 1) / math.sqrt(5 * 2))
    weights = (78.114, 154.212, 196.293), (154.212, 168.239, 168.239)  # sorted: neighbours are paired
    expected = np.abs(np.subtract(*weights)).mean()
    assert found["weight"] == pytest.approx(expected, abs=1e-3)


def test_fragments_by_hand():
    """An anilide is cut on both sides of its nitrogen."""
    found = Reference.of(["CC(=O)Nc1ccccc1", "CC(=O)Nc1ccccc1"]).fragments
    assert found == Counter({"[1*]C(C)=O": 2, "[5*]N[5*]": 2, "[16*]c1ccccc1": 2})


def test_what_is_not_there_is_not_a_number(test_set):
    nothing = metrics_of(["C1CC", ""], test_set, filters=Filters(()))
    assert nothing.pop("valid") == 0
    assert all(math.isnan(value) for value in nothing.values())
    one = metrics_of(["CCO", "CCO", "("], test_set, filters=Filters(()))
    assert set(one) == {*nothing, "valid"}
    assert math.isnan(one["Scaf/Test"])  # no scaffold at all
    assert one["FCD/Test"] > 0
    assert math.isnan(metrics_of(["CCO", "("], test_set)["FCD/Test"])  # of one molecule


def test_novelty_counts_different_molecules(test_set):
    found = moses_metrics(["CCO", "OCC", "CCN", "CCC", "("], {"CCO"}, test_set, unique_at=(2, 4))
    assert found["Novelty"] == pytest.approx(2 / 3)
    assert found["unique@2"] == 0.5
    assert found["unique@4"] == 0.75


@pytest.fixture
def pattern_files(tmp_path):
    named, plain = tmp_path / "named.csv", tmp_path / "plain.csv"
    named.write_text('names,smarts\nacid,"[#6](=[#8])-[#8]-[#1]"\n')
    plain.write_text('"c:1:c:c:c:c:c:1-[F,Cl]"      ,"<a halogen>"\n')
    return named, plain


def test_filters(pattern_files):
    """Hydrogens are atoms of a pattern."""
    smiles = {
        "CCO": True,
        "CC(=O)O": False,
        "CC(=O)OC": True,
        "Clc1ccccc1": False,
        "ClCc1ccccc1": True,
        "CC[NH3+]": False,
        "CC(=O)[O-].[Na+]": False,
        "CCI": False,
        "C1CCCCCC1": True,
        "C1CCCCCCC1": False,
    }
    passed = Filters.of(*pattern_files).passed([Chem.MolFromSmiles(text) for text in smiles])
    assert dict(zip(smiles, passed.tolist(), strict=True)) == smiles


def test_missing_packages_say_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "moses", None)
    with pytest.raises(
        SettingsError, match=r"train.csv.gz of MOSES not found: pip install --no-deps molsets==0.3.1"
    ):
        dataset("train")
    monkeypatch.setitem(sys.modules, "rdkit.Chem", None)
    with pytest.raises(SettingsError, match=r"pip install -c constraints.txt -e '.\[molecules\]'"):
        canonical("C")


def test_references_are_saved_and_read(tmp_path, test_set):
    test_set.save(tmp_path / "statistics.npz")
    again = Reference.load(tmp_path / "statistics.npz")
    assert again.fragments == test_set.fragments
    assert again.scaffolds == test_set.scaffolds
    assert metrics_of(GENERATED, again) == metrics_of(GENERATED, test_set)


class Evil:
    def __reduce__(self):
        return (pytest.fail, ("the file ran code",))


@pytest.fixture
def forgotten():
    """Nothing that was read before is remembered, and nothing afterwards."""
    Reference.shipped.cache_clear()
    yield
    Reference.shipped.cache_clear()


def ship(folder, monkeypatch, statistics):
    """Make a package `moses` with statistics as it has them: a pickle of numpy 1 inside an .npz file."""
    data = folder / "moses" / "dataset" / "data"
    data.mkdir(parents=True)
    (folder / "moses" / "__init__.py").write_text("raise AssertionError('it is not imported')")
    array = np.array(statistics, dtype=object)
    text = pickle.dumps(array, protocol=2).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    with zipfile.ZipFile(data / "test_stats.npz", "w") as archive, archive.open("stats.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|O", "fortran_order": False, "shape": ()})
        file.write(text)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "moses", raising=False)


@pytest.mark.usefixtures("forgotten")
def test_shipped_statistics(tmp_path, monkeypatch, test_set):
    unpacked = np.unpackbits(test_set.fingerprints.packed, axis=1)
    ship(
        tmp_path,
        monkeypatch,
        {
            "FCD": {"mu": test_set.mean.astype(np.float32), "sigma": test_set.covariance},
            "SNN": {"fps": unpacked},
            "Frag": {"frag": test_set.fragments},
            "Scaf": {"scaf": test_set.scaffolds},
            **{
                title: {"values": test_set.properties[name].tolist()}
                for name, title in {"logp": "logP", "sa": "SA", "qed": "QED", "weight": "weight"}.items()
            },
        },
    )
    assert metrics_of(GENERATED, Reference.shipped("test")) == pytest.approx(
        metrics_of(GENERATED, test_set), abs=1e-4
    )


@pytest.mark.usefixtures("forgotten")
def test_shipped_statistics_run_no_code(tmp_path, monkeypatch):
    ship(tmp_path, monkeypatch, {"FCD": Evil()})
    with pytest.raises(KeyError, match="_pytest"):
        Reference.shipped("test")


@pytest.mark.usefixtures("forgotten")
@pytest.mark.skipif(not MOLSETS, reason="needs molsets")
def test_shipped_statistics_of_moses():
    """The test set is 176 074 molecules; their first one is known."""
    found = Reference.shipped("test")
    assert len(found.fingerprints) == 176_074
    assert properties(["CC1C2CCC(C2)C1CN(CCO)C(=O)c1ccc(Cl)cc1"])["qed"] == found.properties["qed"][0]


def test_drawings():
    pictures = draw(["c1ccccc1", "CCO", "C1CC", "C2CC", None, "x" * 5000], size=(90, 130))
    assert pictures.shape == (6, 90, 130, 3)
    assert pictures.dtype == np.uint8
    assert len({picture.tobytes() for picture in pictures}) == 6  # what is no molecule shows its text
    ends = slice(None, 4), slice(-4, None)
    corners = [pictures[:, y, x].min((1, 2, 3)) < 255 for y in ends for x in ends]
    assert np.all(corners, axis=0).tolist() == [False, False, True, True, True, True]
    assert draw([]).shape == (0, 160, 240, 3)
