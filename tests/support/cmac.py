"""The registers of a MAC's kernel in a bench."""

from typing import Any

from p4sgd.hw.spec import cmac
from p4sgd.hw.spec.register_map import Register


class Host:
    """Reads and writes them through ``master``, which moves words."""

    def __init__(self, master: Any) -> None:
        self._master = master

    async def read(self, register: Register) -> dict[str, int]:
        return register.decode(await self._master.read(register.offset))

    async def write(self, register: Register, **fields: int) -> None:
        await self._master.write(register.offset, register.encode(**fields))

    async def counters(self) -> dict[str, int]:
        """All counters of one moment."""
        await self.write(cmac.SNAPSHOT)
        while (await self.read(cmac.SNAPSHOT))["pending"]:
            pass
        found = {}
        for name, counter in cmac.COUNTERS.items():
            low, high = counter.registers
            found[name] = (await self.read(low))["value"] | (await self.read(high))["value"] << 32
        return found

    async def until(self, **status: int) -> None:
        """Wait until fields of STATUS have these values."""
        for _ in range(500):
            found = await self.read(cmac.STATUS)
            if all(found[name] == value for name, value in status.items()):
                return
        raise AssertionError(f"{status} never came, but {found}")
