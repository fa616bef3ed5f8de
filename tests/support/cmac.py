"""The registers of a MAC's kernel in a bench."""

from p4sgd.hw.spec import cmac
from support.axi import Registers


class Host(Registers):
    async def counters(self) -> dict[str, int]:
        """All counters of one moment."""
        await self.write(cmac.SNAPSHOT)
        while (await self.read(cmac.SNAPSHOT))["pending"]:
            pass
        return await self.read_counters(cmac.COUNTERS)

    async def until(self, **status: int) -> None:
        """Wait until fields of STATUS have these values."""
        for _ in range(500):
            found = await self.read(cmac.STATUS)
            if all(found[name] == value for name, value in status.items()):
                return
        raise AssertionError(f"{status} never came, but {found}")
