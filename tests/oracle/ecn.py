"""Congestion marks across a tunnel: RFC 6040, normal mode, figure 4."""

from admission import Drop

NOT_ECT, ECT_1, ECT_0, CE = 0b00, 0b01, 0b10, 0b11
#                 outer: Not-ECT, ECT(1), ECT(0), CE
FIGURE_4 = {
    NOT_ECT: {NOT_ECT: NOT_ECT, ECT_1: NOT_ECT, ECT_0: NOT_ECT, CE: None},
    ECT_0: {NOT_ECT: ECT_0, ECT_1: ECT_1, ECT_0: ECT_0, CE: CE},
    ECT_1: {NOT_ECT: ECT_1, ECT_1: ECT_1, ECT_0: ECT_1, CE: CE},
    CE: {NOT_ECT: CE, ECT_1: CE, ECT_0: CE, CE: CE},
}


def encapsulated(tos, fixed_dscp):
    """DSCP and ECN of the outer header (section 4.1)."""
    return tos if fixed_dscp is None else fixed_dscp & 0xFC | tos & 3


def decapsulated(outer, inner):
    """DSCP and ECN of the inner header (section 4.2)."""
    mark = FIGURE_4[inner & 3][outer & 3]
    if mark is None:
        raise Drop("ecn")
    return inner & 0xFC | mark
