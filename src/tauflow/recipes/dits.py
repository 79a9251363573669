"""MDLM, Duo, and SEDD: text models of one architecture, `tauflow.networks.dit`, on the tokens of GPT-2.

All were trained under the log-linear schedule, which is kappa = t here: -ln kappa = sigma, the noise level
that Duo and SEDD get as the time. (Theirs starts at kappa = 0.001, where sigma = 6.9. Smaller kappa get the
same.) MDLM doesn't get the time, and its posterior doesn't depend on it.

SEDD predicts scores instead of posteriors. For a masked coordinate d of a state x, the score of a token y is
the ratio p_t(x with y at d) / p_t(x). Both states come from the same data with the same noise except at d,
which has its token with probability kappa and the mask with 1 - kappa. Given the other coordinates of x, that
token is y with the posterior probability p(y | x). So

    score(y) = kappa / (1 - kappa) p(y | x) = p(y | x) / (e^sigma - 1).

Its logarithm differs from ln p by a number that doesn't depend on y, and so does the output of the network:
with `scale_by_sigma` the log-score is the output less ln(e^sigma - 1) and ln V. So the posterior is the
softmax of the output over the data tokens, with or without `scale_by_sigma`. Exact scores sum to
1 / (e^sigma - 1), learned ones need not. The softmax keeps their ratios, and the process keeps its own rate
of jumps, which SEDD's samplers take from the sum.
"""

import dataclasses
from collections.abc import Mapping

from tauflow.denoise import Model
from tauflow.errors import CheckpointError
from tauflow.networks.dit import DiT, DiTSizes
from tauflow.process import Masked, Mixture, Uniform
from tauflow.recipes.language import OTHER_TOKENIZER, Ids, Language, TextTokens, read_tokenizer
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
"""Names of weights in their files, and in our DiT."""
UNUSED = (r".*rotary_emb\.inv_freq$",)  # computed here
GPT2_FILES = (("tokenizer.json",), ("vocab.json", "merges.txt"))
"""A tokenizer needs one of these sets of files."""
RELEASED_SIZES = ("hidden_dim", "n_blocks", "n_heads", "cond_dim", "model_length")
TRAINED_SIZES = ("hidden_size", "n_blocks", "n_heads", "cond_dim", "length")
"""Names of width, blocks, heads, features of the time, and length in config.json."""


def host(config: Config) -> DiT:
    """Return the network of a config from `describe`."""
    return DiT(DiTSizes(**config["sizes"]))


def assemble(loaded: Loaded) -> Trained:
    """Make the model and the task; a network with more states than tokens has a mask."""
    network = loaded.host
    length = loaded.config["length"]
    network.told = loaded.recipe.time
    sizes = network.sizes
    source = (Masked if sizes.num_states > sizes.num_tokens else Uniform)(sizes.num_tokens)
    process = Mixture(source, loaded.config.get("schedule", loaded.recipe.schedule))
    return Trained(Model(network, process, (length,)), Language(read_gpt2(loaded), length, context=length))


def read_gpt2(loaded: Loaded) -> TextTokens:
    """Return GPT-2's tokenizer from the folder.

    Documents follow each other in a sample, so no token ends it. Duo has one id more than GPT-2, for padding,
    and a tokenizer may have one more for the mask.
    """
    folder = loaded.folder
    sizes = loaded.host.sizes
    if not any(all((folder / name).is_file() for name in names) for names in GPT2_FILES):
        raise CheckpointError(
            f"{folder} has no tokenizer. Add GPT-2's, tokenizer.json or vocab.json and merges.txt: "
            f"hf download openai-community/gpt2 tokenizer.json --local-dir {folder}"
        )
    tokenizer = read_tokenizer(folder, loaded.recipe.tokenizer)
    tokens = sizes.num_tokens
    states = sizes.num_states
    mask = tokens if states > tokens else None
    other_mask = mask is not None and tokenizer.mask_token_id not in (None, mask)
    if other_mask or not states - 1 <= len(tokenizer) <= states:
        raise CheckpointError(
            f"The tokenizer in {folder} must have {tokens} tokens and the mask {mask}, got {len(tokenizer)} "
            f"and {tokenizer.mask_token_id}. {OTHER_TOKENIZER}"
        )
    return TextTokens(tokenizer, Ids(range(tokens), states, mask))


def describe(
    settings: Config,
    names: tuple[str, str, str, str, str],
    num_tokens: int,
    masked: bool,
    apart: bool = False,
) -> Config:
    """Return what `host` and `assemble` read, from settings with other names."""
    width, blocks, heads, time_width, length = (settings[name] for name in names)
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
    """Return MDLM's settings; the last id is the mask."""
    if config.get("time_conditioning", False):
        raise CheckpointError(
            "time_conditioning must be false: the recipe is for MDLMs that don't get the time."
        )
    return describe(config, RELEASED_SIZES, config["vocab_size"] - 1, masked=True)


def duo_config(config: Config, files: Mapping[str, Config]) -> Config:
    """Return Duo's settings; the noise is uniform over all ids."""
    if config.get("causal", False):
        raise CheckpointError("causal must be false: the recipe is for diffusion models.")
    return describe(config, RELEASED_SIZES, config["vocab_size"], masked=False)


def sedd_config(config: Config, files: Mapping[str, Config]) -> Config:
    """Return SEDD's settings; the mask comes after the tokens."""
    if not {"tokens", "model", "graph", "noise"} <= config.keys():
        raise CheckpointError(
            "config.json must have a model_type, unless the model is SEDD. Choose a folder whose config.json "
            "has one."
        )
    kind = (config["graph"]["type"], config["noise"]["type"])
    if kind != ("absorb", "loglinear"):
        raise CheckpointError(f"The graph and noise of SEDD must be absorb and loglinear, got {kind}.")
    return describe(config["model"], TRAINED_SIZES, config["tokens"], masked=True)


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
"""The same: config.json is written either way."""
SEDD = dataclasses.replace(
    MDLM,
    name="sedd",
    model_type="*",
    marks={"config.json": {"model_type": None}},  # it has none
    hub=("louaaron/sedd-*",),
    config=sedd_config,
    time="sigma",
)
DITS = (MDLM, DUO, DUO_CAPITALS, SEDD)
