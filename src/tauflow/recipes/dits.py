"""MDLM, Duo and SEDD: text models of one architecture, `tauflow.networks.dit`, on the tokens of GPT-2.

All were trained under the log-linear schedule, which is kappa = t here: -ln kappa = sigma, the noise that Duo
and SEDD are told. (Theirs begins at kappa = 0.001, where sigma = 6.9; so much is told of smaller ones too.)
MDLM is not told the time, which its posterior does not depend on.

SEDD gives scores instead of posteriors. For a masked coordinate d of a state x, the score of a token y is
the ratio p_t(x with y at d) / p_t(x). Both states come from the same data, noised alike but for d, which
shows its token with probability kappa and the mask with 1 - kappa; given the other coordinates of x, that
token is y with the posterior probability p(y | x). So

    score(y) = kappa / (1 - kappa) p(y | x) = p(y | x) / (e^sigma - 1).

Its logarithm differs from ln p by a number that y does not appear in, and so does the output of the network:
with `scale_by_sigma` the log-score is the output less ln(e^sigma - 1) and ln V. The posterior is thus the
softmax of the output over the data tokens, with `scale_by_sigma` or without. Learned scores need not sum to
1 / (e^sigma - 1), as exact ones do; the softmax keeps their ratios, and the process its own rate of jumps,
which SEDD's samplers take from the sum.
"""

import dataclasses
from collections.abc import Mapping

from tauflow.denoise import Model
from tauflow.errors import CheckpointError
from tauflow.networks.dit import DiT, DiTSizes
from tauflow.process import Masked, Mixture, Uniform
from tauflow.recipes.language import Ids, Language, TextTokens, read_tokenizer
from tauflow.recipes.recipe import Config, Loaded, Recipe
from tauflow.train import Trained

KEYS = (
    (r"^backbone\.", ""),
    (r"^vocab_embed\.(embedding|weight)$", "embedding.weight"),
    (r"^(sigma_map|time_embedding)\.mlp\.", "time."),
    (r"\.norm1\.", ".attention_norm."),
    (r"\.attn_qkv\.|\.qw\.", ".attention_in.0."),
    (r"\.kw\.", ".attention_in.1."),
    (r"\.vw\.", ".attention_in.2."),
    (r"\.attn_out\.", ".attention_out."),
    (r"\.norm2\.", ".mlp_norm."),
    (r"\.mlp\.0\.", ".mlp_in."),
    (r"\.mlp\.2\.", ".mlp_out."),
    (r"\.adaLN_modulation\.", ".modulation."),
    (r"^output_layer\.norm_final\.", "norm."),
    (r"^output_layer\.linear\.", "output."),
    (r"^output_layer\.", ""),
)
"""Names of weights in their files, and in a DiT."""
UNUSED = (r".*rotary_emb\.inv_freq$",)  # computed here
GPT2_FILES = (("tokenizer.json",), ("vocab.json", "merges.txt"))
"""Files that a tokenizer is read from: one of these sets."""
RELEASED_SIZES = ("hidden_dim", "n_blocks", "n_heads", "cond_dim", "model_length")
TRAINED_SIZES = ("hidden_size", "n_blocks", "n_heads", "cond_dim", "length")
"""What the files call width, blocks, heads, features of the time, and length."""


def host(config: Config) -> DiT:
    """Return the network of a config in the words of this module."""
    return DiT(DiTSizes(**config["sizes"]))


def assemble(loaded: Loaded) -> Trained:
    """Make the model and the task; a network with a state more than tokens has a mask."""
    network, length = loaded.host, loaded.config["length"]
    network.told = loaded.recipe.time
    sizes = network.sizes
    source = (Masked if sizes.num_states > sizes.num_tokens else Uniform)(sizes.num_tokens)
    process = Mixture(source, loaded.config.get("schedule", loaded.recipe.schedule))
    return Trained(Model(network, process, (length,)), Language(text_of(loaded), length, context=length))


def text_of(loaded: Loaded) -> TextTokens:
    """Return GPT-2's tokenizer from the folder; refuse one of another model.

    Samples are full of text in which documents follow each other, so that no token ends one. Duo has an id
    more than GPT-2, for padding; a tokenizer may have one for the mask.
    """
    folder, sizes = loaded.folder, loaded.host.sizes
    if not any(all((folder / name).is_file() for name in names) for names in GPT2_FILES):
        raise CheckpointError(
            f"{folder} has no tokenizer; put GPT-2's there, tokenizer.json or vocab.json and merges.txt: "
            f"hf download openai-community/gpt2 tokenizer.json --local-dir {folder}"
        )
    tokenizer = read_tokenizer(folder, loaded.recipe.tokenizer)
    tokens, states = sizes.num_tokens, sizes.num_states
    mask = tokens if states > tokens else None
    others = mask is not None and tokenizer.mask_token_id not in (None, mask)
    if others or not states - 1 <= len(tokenizer) <= states:
        raise CheckpointError(
            f"the tokenizer in {folder} has {len(tokenizer)} tokens, and the mask {tokenizer.mask_token_id}; "
            f"the model has {tokens}, and the mask {mask}: take the tokenizer that belongs to it"
        )
    return TextTokens(tokenizer, Ids(range(tokens), states, mask))


def described(
    words: Config, names: tuple[str, str, str, str, str], num_tokens: int, masked: bool, apart: bool = False
) -> Config:
    """Return sizes in the words of this module, from those of a file with its names."""
    width, blocks, heads, time_width, length = (words[name] for name in names)
    return {
        "sizes": {
            "width": width,
            "blocks": blocks,
            "heads": heads,
            "time_width": time_width,
            "num_states": num_tokens + masked,
            "num_tokens": num_tokens,
            "apart": apart,
        },
        "length": length,
    }


def mdlm_config(config: Config, files: Mapping[str, Config]) -> Config:
    """Return the settings of MDLM, whose last id is the mask."""
    if config.get("time_conditioning", False):
        raise CheckpointError("this MDLM is told the time; the recipe is for those that are not")
    return described(config, RELEASED_SIZES, config["vocab_size"] - 1, masked=True)


def duo_config(config: Config, files: Mapping[str, Config]) -> Config:
    """Return the settings of Duo, whose noise is uniform over all ids."""
    if config.get("causal", False):
        raise CheckpointError("this model is autoregressive (causal); the recipe is for diffusion models")
    return described(config, RELEASED_SIZES, config["vocab_size"], masked=False)


def sedd_config(config: Config, files: Mapping[str, Config]) -> Config:
    """Return the settings of SEDD, which lie in parts; the mask comes after its tokens."""
    if not {"tokens", "model", "graph", "noise"} <= config.keys():
        raise CheckpointError(
            "config.json says no model_type, and is not that of SEDD, which says none either; name a folder "
            "whose config.json has one"
        )
    graph, noise = config["graph"]["type"], config["noise"]["type"]
    if (graph, noise) != ("absorb", "loglinear"):
        raise CheckpointError(
            f"this SEDD has {graph} noise on a {noise} schedule; the recipe is for absorb and loglinear"
        )
    return described(config["model"], TRAINED_SIZES, config["tokens"], masked=True)


MDLM = Recipe(
    name="mdlm",
    model_type="mdlm",
    host=host,
    assemble=assemble,
    hub=("kuleshov-group/mdlm-*",),
    config=mdlm_config,
    keys=KEYS,
    unused=UNUSED,
    pickles=("pytorch_model.bin",),
    tokenizer="GPT2Tokenizer",
)
DUO = dataclasses.replace(
    MDLM,
    name="duo",
    model_type="duo",
    hub=("s-sahoo/duo*",),
    config=duo_config,
    time="sigma",
)
DUO_CAPITALS = dataclasses.replace(DUO, model_type="DUO", hub=())
"""The same; config.json is written either way."""
SEDD = dataclasses.replace(
    MDLM,
    name="sedd",
    model_type="*",
    marks={"config.json": {"model_type": None}},  # it says none
    hub=("louaaron/sedd-*",),
    config=sedd_config,
    time="sigma",
)
DITS = (MDLM, DUO, DUO_CAPITALS, SEDD)
