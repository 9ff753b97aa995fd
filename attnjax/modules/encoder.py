"""The encoder: every token sees every other, unless the mask says otherwise."""

from attnjax.modules.token_model import TokenModel


class Encoder(TokenModel):
    """Tokens to logits in both directions, as BERT; `features` is what a decoder attends to.

    Encodings for causal masks only, as `ALiBi(symmetric=False)`, are a ValueError when called.
    """
