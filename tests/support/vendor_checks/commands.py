"""Commands of AMD's tools and parameters of AMD's IP, as far as the generated scripts use them.

Commands are from UG835 (Vivado Tcl Command Reference, 2022.1), ``package_xo`` is from UG1393. Neither has the commands
of ``ipx::``: these are listed as UG1118 and AMD's own scripts for RTL kernels use them.

Names of parameters, pins and buses of IP are those that our scripts use. They were not read out of the product guides,
which have the last word: PG203 (100G Ethernet), PG276 (HBM), PG164 (reset), PG247 (SmartConnect), PG195 (XDMA), PB043
and PB046 (buffers, gates), PG172 (ILA) and PG159 (VIO).
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Command(NamedTuple):
    """Syntax of a command."""

    flags: str
    """Options without a value, separated by spaces."""
    options: str
    """Options with a value."""
    least: int
    """Fewest other arguments."""
    most: int | None
    """Most of them; None if there is no limit."""


def _found(options: str = "") -> Command:
    """Syntax of a command that finds objects."""
    return Command("quiet verbose regexp nocase", f"filter of_objects {options}", 0, 1)


_ALWAYS = "quiet verbose"

COMMANDS: dict[str, Command] = {
    # projects
    "create_project": Command(f"force in_memory ip rtl_kernel {_ALWAYS}", "part", 0, 2),
    "close_project": Command(f"delete {_ALWAYS}", "", 0, 0),
    "current_project": Command(_ALWAYS, "", 0, 1),
    "current_fileset": Command(f"constrset simset srcset blockset {_ALWAYS}", "", 0, 1),
    "version": Command(f"short java {_ALWAYS}", "", 0, 0),
    "add_files": Command(f"norecurse force scan_for_includes {_ALWAYS}", "fileset of_objects copy_to", 0, 1),
    "update_compile_order": Command(f"force_gui {_ALWAYS}", "fileset", 0, 0),
    "set_property": Command(_ALWAYS, "dict name value objects", 0, 3),
    "get_property": Command(f"min max {_ALWAYS}", "", 2, 2),
    "get_files": Command(f"norecurse references all {_ALWAYS} regexp nocase", "filter of_objects compile_order", 0, 1),
    # IP
    "create_ip": Command(f"force {_ALWAYS}", "vlnv module_name dir vendor library name version revision", 0, 1),
    "get_ips": Command(f"all exclude_bd_ips {_ALWAYS} regexp nocase", "filter of_objects", 0, 1),
    "generate_target": Command(f"force {_ALWAYS}", "", 2, 2),
    "update_ip_catalog": Command(f"rebuild scan_changes {_ALWAYS}", "add_ip delete_ip repo_path", 0, 0),
    "ipx::package_project": Command(
        f"import_files force {_ALWAYS}",
        "root_dir vendor library taxonomy set_current generated_files module archive_source_project",
        0,
        1,
    ),
    "ipx::current_core": Command(_ALWAYS, "", 0, 1),
    "ipx::get_user_parameters": Command(_ALWAYS, "of_objects", 0, 1),
    "ipx::remove_user_parameter": Command(_ALWAYS, "", 2, 2),
    "ipx::infer_bus_interface": Command(_ALWAYS, "", 3, 3),
    "ipx::add_bus_interface": Command(_ALWAYS, "", 2, 2),
    "ipx::remove_bus_interface": Command(_ALWAYS, "", 2, 2),
    "ipx::get_bus_interfaces": Command(_ALWAYS, "of_objects", 0, 1),
    "ipx::associate_bus_interfaces": Command(f"clear {_ALWAYS}", "busif clock reset", 1, 1),
    "ipx::add_bus_parameter": Command(_ALWAYS, "", 2, 2),
    "ipx::add_port_map": Command(_ALWAYS, "", 2, 2),
    "ipx::add_memory_map": Command(_ALWAYS, "", 2, 2),
    "ipx::add_address_block": Command(_ALWAYS, "", 2, 2),
    "ipx::add_register": Command(_ALWAYS, "", 2, 2),
    "ipx::add_field": Command(_ALWAYS, "", 2, 2),
    "ipx::add_register_parameter": Command(_ALWAYS, "", 2, 2),
    "ipx::create_xgui_files": Command(_ALWAYS, "logo_file", 1, 1),
    "ipx::update_checksums": Command(_ALWAYS, "", 1, 1),
    "ipx::check_integrity": Command(f"kernel {_ALWAYS}", "", 1, 1),
    "ipx::save_core": Command(_ALWAYS, "", 0, 1),
    "package_xo": Command(
        f"force {_ALWAYS}",
        "kernel_name kernel_xml output_kernel_xml design_xml ip_directory parent_ip_directory kernel_files "
        "kernel_xml_args kernel_xml_pipes kernel_xml_connections ctrl_protocol xo_path",
        0,
        0,
    ),
    # synthesis and implementation
    "read_verilog": Command(f"sv {_ALWAYS}", "library", 1, 1),
    "read_xdc": Command(f"unmanaged no_add {_ALWAYS}", "cells ref mode", 1, 1),
    "synth_design": Command(
        f"rtl bufg rtl_skip_ip no_lc assert no_timing_driven sfcu {_ALWAYS}",
        "name part constrset top include_dirs generic verilog_define flatten_hierarchy directive mode fsm_extraction "
        "keep_equivalent_registers resource_sharing max_bram max_uram max_dsp shreg_min_size",
        0,
        0,
    ),
    "opt_design": Command(f"retarget propconst sweep remap resynth_area {_ALWAYS}", "directive", 0, 0),
    "place_design": Command(f"no_psip no_timing_driven unplace {_ALWAYS}", "directive", 0, 0),
    "phys_opt_design": Command(f"fanout_opt placement_opt routing_opt rewire {_ALWAYS}", "directive", 0, 0),
    "route_design": Command(
        f"unroute preserve ultrathreads tns_cleanup {_ALWAYS}", "directive nets physical_nets", 0, 0
    ),
    "report_timing_summary": Command(
        f"no_detailed_paths setup hold unique_pins input_pins no_header report_unconstrained warn_on_violation append "
        f"{_ALWAYS}",
        "delay_type max_paths nworst path_type file name rpx check_timing_verbose",
        0,
        0,
    ),
    "report_utilization": Command(
        f"hierarchical append slr packthru {_ALWAYS}",
        "file name cells pblocks hierarchical_depth hierarchical_percentages",
        0,
        0,
    ),
    "open_run": Command(f"pr_configs {_ALWAYS}", "name", 1, 1),
    "report_cdc": Command(
        f"details summary all_checks_per_endpoint no_header show_waiver no_waiver waived append {_ALWAYS}",
        "from to cells severity file name",
        0,
        0,
    ),
    "get_cdc_violations": Command(f"regexp nocase {_ALWAYS}", "name filter", 0, 1),
    "report_methodology": Command(
        f"append waived no_waivers return_string {_ALWAYS}",
        "name cells checks file rpx slack_lesser_than merge_exceptions",
        0,
        0,
    ),
    "get_methodology_violations": Command(f"regexp nocase {_ALWAYS}", "name filter", 0, 1),
    "get_timing_paths": Command(
        f"unique_pins setup hold {_ALWAYS}",
        "from to through delay_type max_paths nworst sort_by group slack_lesser_than filter",
        0,
        0,
    ),
    "report_bus_skew": Command(
        f"no_detailed_paths sort_by_slack no_header append return_string warn_on_violation {_ALWAYS}",
        "delay_type max_paths nworst file rpx cells",
        0,
        0,
    ),
    "report_power": Command(f"no_propagation advisory return_string append {_ALWAYS}", "hier file name format", 0, 0),
    "report_qor_suggestions": Command(
        f"append return_string no_split report_all_suggestions {_ALWAYS}", "file name max_strategies max_paths", 0, 0
    ),
    "get_qor_suggestions": Command(_ALWAYS, "filter", 0, None),
    "report_drc": Command(f"append {_ALWAYS}", "file name checks ruledecks rpx", 0, 0),
    "write_checkpoint": Command(f"force {_ALWAYS}", "cell", 1, 1),
    "get_runs": _found(),
    "launch_runs": Command(f"force next_step {_ALWAYS}", "jobs dir to_step scripts_only pre_launch_script", 1, 1),
    "wait_on_run": Command(_ALWAYS, "timeout", 1, 1),
    # constraints
    "create_clock": Command(f"add {_ALWAYS}", "period name waveform", 0, 1),
    "set_max_delay": Command(f"datapath_only rise fall {_ALWAYS}", "from to through", 1, 1),
    "set_bus_skew": Command(_ALWAYS, "from to through", 1, 1),
    "create_waiver": Command(
        f"scoped {_ALWAYS}", "type id objects from to strings of_objects user description tags timestamp", 0, 0
    ),
    "set_multicycle_path": Command(f"setup hold start end {_ALWAYS}", "from to through", 1, 1),
    "set_false_path": Command(f"setup hold {_ALWAYS}", "from to through", 0, 0),
    "get_cells": Command(f"hierarchical {_ALWAYS} regexp nocase", "filter of_objects hsc match_style", 0, 1),
    "get_pins": Command(f"hierarchical leaf {_ALWAYS} regexp nocase", "filter of_objects", 0, 1),
    "get_ports": _found(),
    "get_clocks": Command(f"include_generated_clocks {_ALWAYS} regexp nocase", "filter of_objects", 0, 1),
    "get_pblocks": Command("include_nested_pblocks quiet verbose regexp nocase", "filter of_objects", 0, 1),
    "create_pblock": Command(_ALWAYS, "", 1, 1),
    "resize_pblock": Command(f"replace {_ALWAYS}", "add remove from to locs", 1, 1),
    "add_cells_to_pblock": Command(f"top add_primitives clear_locs {_ALWAYS}", "cells", 1, 2),
    "set_operating_conditions": Command(
        _ALWAYS,
        "voltage grade process junction_temp ambient_temp thetaja thetasa airflow heatsink thetajb board board_temp "
        "board_layers design_power_budget",
        0,
        0,
    ),
    "current_design": Command(_ALWAYS, "", 0, 1),
    # block designs
    "create_bd_design": Command(_ALWAYS, "dir cell bdsource", 1, 1),
    "create_bd_cell": Command(_ALWAYS, "type vlnv reference", 1, 1),
    "create_bd_port": Command(_ALWAYS, "dir type from to freq_hz", 1, 1),
    "create_bd_intf_port": Command(_ALWAYS, "mode vlnv", 1, 1),
    "connect_bd_net": Command(_ALWAYS, "net", 1, None),
    "connect_bd_intf_net": Command(_ALWAYS, "intf_net boundary_type", 1, 2),
    "get_bd_pins": _found(),
    "get_bd_ports": _found(),
    "get_bd_intf_pins": _found(),
    "get_bd_intf_ports": _found(),
    "get_bd_addr_spaces": _found(),
    "get_bd_addr_segs": Command(
        f"excluded addressed addressing unaddressed {_ALWAYS} regexp nocase", "filter of_objects", 0, 1
    ),
    "assign_bd_address": Command(f"force {_ALWAYS}", "target_address_space offset range", 0, 1),
    "validate_bd_design": Command(f"force {_ALWAYS}", "design", 0, 1),
    "save_bd_design": Command(_ALWAYS, "", 0, 1),
    "make_wrapper": Command(f"top testbench inst_template import force {_ALWAYS}", "fileset files", 0, 0),
}
"""By name. Not all options are listed, only those that a script might use."""


class Ip(NamedTuple):
    """Names of an IP, separated by spaces; ``#`` stands for a digit."""

    parameters: str
    inputs: str = ""
    """Pins that must be driven."""
    inputs_beside: Mapping[str, str] = {}
    """Pins that must be driven if another pin or a bus is connected, with that one's name."""
    outputs: str = ""
    buses: str = ""


IPS = {
    "cmac_usplus": Ip(
        "CMAC_CAUI4_MODE NUM_LANES USER_INTERFACE GT_REF_CLK_FREQ TX_FLOW_CONTROL RX_FLOW_CONTROL INCLUDE_RS_FEC "
        "ENABLE_AXI_INTERFACE INCLUDE_STATISTICS_COUNTERS INCLUDE_SHARED_LOGIC RX_MIN_PACKET_LEN ENABLE_PIPELINE_REG "
        "GT_DRP_CLK CMAC_CORE_SELECT GT_GROUP_SELECT RX_EQ_MODE INS_LOSS_NYQ"
    ),
    "hbm": Ip(
        "USER_HBM_DENSITY USER_HBM_STACK USER_APB_EN USER_XSDB_INTF_EN USER_SWITCH_ENABLE_0# USER_HBM_REF_CLK_# "
        "USER_AXI_INPUT_CLK_FREQ USER_AXI_INPUT_CLK1_FREQ USER_SAXI_## USER_CLK_SEL_LIST# "
        "USER_MC#_EN_SBREF USER_MC##_EN_SBREF USER_MC#_LOOKAHEAD_SBRF USER_MC##_LOOKAHEAD_SBRF",
        "HBM_REF_CLK_0 HBM_REF_CLK_1 APB_0_PCLK APB_1_PCLK APB_0_PRESET_N APB_1_PRESET_N",
        {"AXI_##_ACLK": "SAXI_##", "AXI_##_ARESET_N": "SAXI_##"},
        "DRAM_0_STAT_CATTRIP DRAM_1_STAT_CATTRIP",
        "SAXI_##",
    ),
    "ila": Ip(
        "C_NUM_OF_PROBES C_DATA_DEPTH C_INPUT_PIPE_STAGES C_EN_STRG_QUAL C_ADV_TRIGGER ALL_PROBE_SAME_MU_CNT "
        "C_PROBE#_WIDTH C_PROBE##_WIDTH"
    ),
    "vio": Ip("C_NUM_PROBE_IN C_NUM_PROBE_OUT C_EN_SYNCHRONIZATION C_PROBE_IN#_WIDTH C_PROBE_IN##_WIDTH"),
    "proc_sys_reset": Ip("", "slowest_sync_clk ext_reset_in", outputs="peripheral_aresetn"),
    "smartconnect": Ip("NUM_SI NUM_MI", "aclk aresetn", buses="S##_AXI M##_AXI"),
    "util_ds_buf": Ip("C_BUF_TYPE", "", {"BUFG_I": "BUFG_O"}, "BUFG_O IBUF_OUT IBUF_DS_ODIV2", "CLK_IN_D"),
    "util_vector_logic": Ip("C_OPERATION C_SIZE", "Op1 Op2", outputs="Res"),
    "xdma": Ip(
        "mode_selection pcie_blk_locn en_gt_selection select_quad pl_link_cap_max_link_width "
        "pl_link_cap_max_link_speed axi_data_width axisten_freq xdma_axi_intf_mm axilite_master_en "
        "axilite_master_size axilite_master_scale",
        "sys_clk sys_clk_gt sys_rst_n",
        outputs="axi_aclk axi_aresetn",
        buses="M_AXI M_AXI_LITE pcie_mgt",
    ),
}
"""By name."""


def is_one_of(name: str, names: str) -> bool:
    """Whether a name is among such names."""
    return any(re.fullmatch(each.replace("#", r"\d"), name) for each in names.split())


def inputs(ip: Ip, used: Iterable[str]) -> set[str]:
    """Pins that must be driven if ``used`` are the pins and buses that are connected."""
    found = set(ip.inputs.split())
    for pin, beside in ip.inputs_beside.items():
        for name in used:
            if match := re.fullmatch(beside.replace("#", r"(\d)"), name):
                found.add(pin.replace("#", "{}").format(*match.groups()))
    return found
