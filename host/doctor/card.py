"""The check of a card's temperatures and power, which its satellite controller measures."""

from p4sgd.host.boards.kernel import BoardAddress
from p4sgd.host.doctor.finding import Finding, Problem, judge

_CELSIUS = {"fpga_celsius": ("the FPGA", 100), "hbm_celsius": ("the HBM", 95)}
"""Sensor, what it measures, and its highest temperature in operation. All boards have an FPGA with HBM of the extended
grade (E), of which 100 °C is the usual end, as 95 °C is of HBM. Neither is from a data sheet of these FPGAs, as DS923
could not be opened, and no public one of these cards was found that has limits. Others of the family switch themselves
off at 100 °C (Alveo U45N, DS1014) or 107 °C (UL3422, DS1016). What a card's controller may report is not asked for."""

_COOL = "let more air through the card (fans, free slots beside it, an inlet below 35 °C), then examine it again"


def examine_card(worker: int | None, address: BoardAddress) -> list[Finding]:
    """Hold what a card measures to its limits: a finding ``card`` for each problem, or one that has passed.

    Power is held to what slot and power cables may give, as the card reports it. There is no finding of a board whose
    driver has no sensors, and a sensor that reads nothing is "unknown".
    """
    if not (readings := address.sensors):
        return []
    problems = []
    for name, (what, most) in _CELSIUS.items():
        if (found := readings[name]) is not None and found > most:
            problems.append(Problem(f"{what} has {found} °C, more than {most} °C, which is usually its limit", _COOL))
    watts, most_watts = readings["watts"], readings["most_watts"]
    if watts is not None and most_watts is not None and watts > most_watts:
        text = f"the card takes {watts} W, more than the {most_watts} W that it may take"
        problems.append(Problem(text, "plug in all of its power cables, or build a bitstream with fewer engines"))
    return judge(worker, "card", {name: "unknown" if it is None else it for name, it in readings.items()}, *problems)
