"""Checks that the files of generated folders say the same as each other, the register maps and the board.

No tool of AMD has seen such a folder, so these take their place: names, versions, offsets, ports, widths, memories and
streams.
"""

from support.generated.block_design import check_block_design
from support.generated.constraints import check_constraints
from support.generated.kernels import check_kernels, check_schema
from support.generated.links import check_links
from support.generated.packages import check_packages
from support.generated.registers import check_ports

CHECKS = {
    "schema": check_schema,
    "ports": check_ports,
    "constraints": check_constraints,
    "packages": check_packages,
    "kernels": check_kernels,
    "links": check_links,
    "block design": check_block_design,
}
"""By name; each yields what is wrong with a `support.generated.folder.VendorFolder`."""
