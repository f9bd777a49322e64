"""Position numbers that start elsewhere."""

from posjax.scheme import Scheme, scheme


@scheme
class shift(Scheme):
    """All position numbers moved by a constant; chain it with the scheme that reads them.

        t  ->  t + by

    `rope|shift(by=1000)` is `rope`; `sinusoidal|shift(by=1000)` starts where the wavelengths have
    long since turned.

    Fields:
      by: how far, in tokens; negative moves left.

    Past the training length: as the scheme it is chained with.
    """

    paper = 'Kiyono et al. 2021, arXiv:2109.05644 (SHAPE, with a random shift)'
    relative = True
    beyond = 'as its partner'

    by: int = 0

    def reach(self, numbers):
        return range(numbers.start + self.by, numbers.stop + self.by)

    def positions(self, pos_BT, tokens_BT, length_B, key):
        return pos_BT + self.by
