"""NoPE: no position at all; what is left is the causal mask."""

from posjax.scheme import Scheme, scheme


@scheme
class none(Scheme):
    """No positional encoding: every hook is the identity.

    A causal model still sees order, since each token sees more than the one before it; without a
    causal mask the model is a function of a bag of tokens.

    Past the training length every logit stays defined; attention spreads over more tokens.
    """

    paper = 'Haviv et al. 2022, arXiv:2203.16634; Kazemnejad et al. 2023, arXiv:2305.19466'
    relative = True
    beyond = 'defined; attention dilutes'
