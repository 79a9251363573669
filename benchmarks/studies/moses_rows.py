"""Rows of the MOSES benchmark as its authors publish them, to stand beside our own."""

MOSES = {
    "valid": "Valid",
    "unique_1000": "Unique@1k",
    "unique_10000": "Unique@10k",
    "fcd_test": "FCD Test",
    "fcd_testsf": "FCD TestSF",
    "snn_test": "SNN Test",
    "snn_testsf": "SNN TestSF",
    "frag_test": "Frag Test",
    "frag_testsf": "Frag TestSF",
    "scaf_test": "Scaf Test",
    "scaf_testsf": "Scaf TestSF",
    "intdiv": "IntDiv",
    "intdiv2": "IntDiv2",
    "filters": "Filters",
    "novelty": "Novelty",
}
"""Our names of the metrics, and those of the published table, in its order."""

PUBLISHED = {
    "training data": "1 1 1 0.008 0.4755 0.6419 0.5859 1 0.9986 0.9907 0 0.8567 0.8508 1 1",
    "CharRNN": (
        "0.9748±0.0264 1±0 0.9994±0.0003 0.0732±0.0247 0.5204±0.0379 0.6015±0.0206 0.5649±0.0142 "
        "0.9998±0.0002 0.9983±0.0003 0.9242±0.0058 0.1101±0.0081 0.8562±0.0005 0.8503±0.0005 "
        "0.9943±0.0034 0.8419±0.0509"
    ),
    "AAE": (
        "0.9368±0.0341 1±0 0.9973±0.002 0.5555±0.2033 1.0572±0.2375 0.6081±0.0043 0.5677±0.0045 "
        "0.991±0.0051 0.9905±0.0039 0.9022±0.0375 0.0789±0.009 0.8557±0.0031 0.8499±0.003 "
        "0.996±0.0006 0.7931±0.0285"
    ),
    "VAE": (
        "0.9767±0.0012 1±0 0.9984±0.0005 0.099±0.0125 0.567±0.0338 0.6257±0.0005 0.5783±0.0008 "
        "0.9994±0.0001 0.9984±0.0003 0.9386±0.0021 0.0588±0.0095 0.8558±0.0004 0.8498±0.0004 "
        "0.997±0.0002 0.6949±0.0069"
    ),
    "JTN-VAE": (
        "1±0 1±0 0.9996±0.0003 0.3954±0.0234 0.9382±0.0531 0.5477±0.0076 0.5194±0.007 "
        "0.9965±0.0003 0.9947±0.0002 0.8964±0.0039 0.1009±0.0105 0.8551±0.0034 0.8493±0.0035 "
        "0.976±0.0016 0.9143±0.0058"
    ),
    "LatentGAN": (
        "0.8966±0.0029 1±0 0.9968±0.0002 0.2968±0.0087 0.8281±0.0117 0.5371±0.0004 0.5132±0.0002 "
        "0.9986±0.0004 0.9972±0.0007 0.8867±0.0009 0.1072±0.0098 0.8565±0.0007 0.8505±0.0006 "
        "0.9735±0.0006 0.9498±0.0006"
    ),
}
"""The numbers of each row in the order of MOSES, with their spread."""

SOURCE = (
    "The rows that name no source of noise are published by the authors of MOSES (Polykovskiy et al., 2020, "
    "arXiv:1811.12823; README of github.com/molecularsets/moses), with their spread; ours are of one trained "
    "model, with standard errors over samples."
)
