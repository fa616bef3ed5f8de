"""What a generated folder says of itself."""

from p4sgd.build.marking import mark
from p4sgd.build.vitis.images import Image
from p4sgd.build.vitis.shell import SHELLS

__all__ = ["readme"]

_TEXT = """\
# {image} for {platform}

From these files AMD's Vitis makes the image of the FPGA; {releases} support the shell. None of the vendor's
tools has seen them yet: `p4sgd build check` has, which finds what can be found without.

```sh
source <Vitis>/settings64.sh
make check          # are the tools and the shell there?
make                # out/hw/{image}.xclbin; hours
```

| target | links |
|---|---|
{targets}

`make TARGET=hw_emu` makes the second, with `emconfig.json` beside it. With `XCL_EMULATION_MODE=hw_emu` and
`EMCONFIG_PATH=$PWD/out/hw_emu` in the environment programs find it as the board `xrt:0`. `make PLATFORM=<file>.xpfm`
takes another shell. The MAC is IP that needs a licence (UltraScale+ Integrated 100G Ethernet), which AMD gives for
nothing. What the tools write goes to `out`; `make clean` removes it, and then the folder can be generated again.

| file | what it is |
|---|---|
| `link_<target>.cfg` | which kernels there are, which memory each port has, what is connected to what |
| `<kernel>.v`, `<kernel>.xml` | a kernel, and what Vitis and XRT have to know of it |
| `package_<kernel>.tcl` | packs it as `out/<kernel>.xo` |
{more}
| `*registers.*` | registers as Markdown, C header and JSON |

{memory}"""


def readme(image: Image, command: str) -> str:
    """The folder's ``README.md``."""
    shell = SHELLS[image.board]
    more = []
    if any(kernel.ip for kernel in image.kernels.values()):
        more.append(
            "| `p4sgd_cmac*_ip.tcl`, `p4sgd_cmac.xdc` | the vendor's MAC, and constraints of its clock crossings |"
        )
    if image.memory:
        more.append("| `place.tcl` | which engine goes to which die; Vivado runs it before it places |")
    return f"{mark('<!-- {} -->', command)}\n\n" + _TEXT.format(
        image=image.name,
        platform=shell.platform,
        releases=f"releases {shell.releases[0]} to {shell.releases[-1]}",
        targets="\n".join(f"| `{target}` | {summary} |" for target, summary in image.summaries.items()),
        more="\n".join(more),
        memory=_memory(image),
    )


def _memory(image: Image) -> str:
    if not image.memory:
        return ""
    bank, size = image.memory.bank_bytes >> 20, image.memory.image_bytes >> 20
    return (
        "**Memory.** Every memory port has pseudo channels of HBM to itself, since one that two masters read is no\n"
        f"faster. A bank of an engine has {bank} MiB, so the largest image of a worker is {size} MiB of lines and\n"
        "weights, padding included; labels are elsewhere.\n"
    )
