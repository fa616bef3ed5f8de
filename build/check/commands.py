"""Commands of AMD's tools and pins of AMD's IP, as far as the generated scripts use them.

Commands are from UG835 (Vivado Tcl Command Reference, 2022.1), ``package_xo`` is from UG1393. Neither has the commands
of ``ipx::``: these are listed as UG1118 and AMD's own scripts for RTL kernels use them.

Names of pins and buses of IP are those that our scripts use. They were not read out of the product guides,
which have the last word: PG276 (HBM), PG164 (reset), PG247 (SmartConnect), PG195 (XDMA), PB043 and PB046 (buffers,
gates).
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


_SYNTAX = """
# projects
create_project 0 2 | force in_memory ip rtl_kernel | name part
close_project 0 0 | delete |
current_project 0 1 | |
current_fileset 0 1 | constrset simset srcset blockset |
version 0 0 | short java |
add_files 0 1 | norecurse force scan_for_includes | fileset of_objects copy_to
update_compile_order 0 0 | force_gui | fileset
set_property 0 3 | | dict name value objects
get_property 2 2 | min max |
get_files 0 1 | norecurse references all regexp nocase | filter of_objects compile_order
# IP
create_ip 0 1 | force | vlnv module_name dir vendor library name version revision
get_ips 0 1 | all exclude_bd_ips regexp nocase | filter of_objects
generate_target 2 2 | force |
update_ip_catalog 0 0 | rebuild scan_changes | add_ip delete_ip repo_path
ipx::package_project 0 1 | import_files force | root_dir vendor library taxonomy set_current module
ipx::current_core 0 1 | |
ipx::get_user_parameters 0 1 | | of_objects
ipx::remove_user_parameter 2 2 | |
ipx::infer_bus_interface 3 3 | |
ipx::add_bus_interface 2 2 | |
ipx::remove_bus_interface 2 2 | |
ipx::get_bus_interfaces 0 1 | | of_objects
ipx::associate_bus_interfaces 1 1 | clear | busif clock reset
ipx::add_bus_parameter 2 2 | |
ipx::add_port_map 2 2 | |
ipx::add_memory_map 2 2 | |
ipx::add_address_block 2 2 | |
ipx::add_register 2 2 | |
ipx::add_field 2 2 | |
ipx::add_register_parameter 2 2 | |
ipx::create_xgui_files 1 1 | | logo_file
ipx::update_checksums 1 1 | |
ipx::check_integrity 1 1 | kernel |
ipx::save_core 0 1 | |
package_xo 0 0 | force | kernel_name kernel_xml ip_directory xo_path
# synthesis and implementation
read_verilog 1 1 | sv | library
read_xdc 1 1 | unmanaged no_add | cells ref mode
synth_design 0 0 | | name part top flatten_hierarchy mode
opt_design 0 0 | retarget propconst sweep remap resynth_area | directive
place_design 0 0 | no_psip no_timing_driven unplace | directive
phys_opt_design 0 0 | fanout_opt placement_opt routing_opt rewire | directive
route_design 0 0 | unroute preserve ultrathreads tns_cleanup | directive nets physical_nets
report_timing_summary 0 0 | setup hold report_unconstrained no_header no_detailed_paths datasheet | max_paths file name
report_utilization 0 0 | hierarchical slr | file name cells hierarchical_depth
open_run 1 1 | pr_configs | name
report_cdc 0 0 | details | from to cells file name
get_cdc_violations 0 1 | regexp nocase | name filter
report_methodology 0 0 | return_string | name cells file
get_methodology_violations 0 1 | regexp nocase | name filter
get_timing_paths 0 0 | setup hold | from to delay_type max_paths filter
report_bus_skew 0 0 | return_string | delay_type max_paths file cells
report_power 0 0 | no_propagation advisory return_string append | hier file name format
report_qor_suggestions 0 0 | append return_string no_split report_all_suggestions | file name max_strategies max_paths
get_qor_suggestions 0 - | | filter
report_drc 0 0 | append | file name checks ruledecks rpx
write_checkpoint 1 1 | force | cell
report_io 0 0 | return_string | file name
report_control_sets 0 0 | return_string | file name cells
report_clock_utilization 0 0 | return_string | file name
report_route_status 0 0 | return_string | file name
write_bitstream 1 1 | force bin_file | cell
quit 0 0 | |
get_runs 0 1 | regexp nocase | filter of_objects
launch_runs 1 1 | force next_step | jobs dir to_step scripts_only pre_launch_script
wait_on_run 1 1 | | timeout
# constraints
create_clock 0 1 | add | period name waveform
set_max_delay 1 1 | datapath_only rise fall | from to through
set_bus_skew 1 1 | | from to through
create_waiver 0 0 | scoped | type id objects from to strings of_objects user description tags timestamp
set_multicycle_path 1 1 | setup hold start end | from to through
set_false_path 0 0 | setup hold | from to through
get_cells 0 1 | hierarchical hier regexp nocase | filter of_objects hsc match_style
get_pins 0 1 | hierarchical leaf regexp nocase | filter of of_objects
get_ports 0 1 | regexp nocase | filter of_objects
get_nets 0 1 | hierarchical regexp nocase | filter of_objects
get_clocks 0 1 | include_generated_clocks regexp nocase | filter of_objects
get_pblocks 0 1 | include_nested_pblocks regexp nocase | filter of_objects
create_pblock 1 1 | |
resize_pblock 1 1 | replace | add remove from to locs
add_cells_to_pblock 1 2 | top add_primitives clear_locs | cells
set_operating_conditions 0 0 | | board design_power_budget
current_design 0 1 | |
# a card
open_hw_manager 0 0 | |
connect_hw_server 0 0 | | url
open_hw_target 0 1 | |
get_hw_devices 0 1 | | of_objects
current_hw_device 0 1 | |
program_hw_devices 0 1 | | key
close_hw_manager 0 0 | |
# block designs
create_bd_design 1 1 | | dir cell bdsource
create_bd_cell 1 1 | | type vlnv reference
create_bd_port 1 1 | | dir type from to freq_hz
create_bd_intf_port 1 1 | | mode vlnv
connect_bd_net 1 - | | net
connect_bd_intf_net 1 2 | | intf_net boundary_type
get_bd_pins 0 1 | regexp nocase | filter of_objects
get_bd_ports 0 1 | regexp nocase | filter of_objects
get_bd_intf_pins 0 1 | regexp nocase | filter of_objects
get_bd_intf_ports 0 1 | regexp nocase | filter of_objects
get_bd_addr_spaces 0 1 | regexp nocase | filter of_objects
get_bd_addr_segs 0 1 | excluded addressed addressing unaddressed regexp nocase | filter of_objects
assign_bd_address 0 1 | force | target_address_space offset range
validate_bd_design 0 1 | force | design
save_bd_design 0 1 | |
make_wrapper 0 0 | top testbench inst_template import force | fileset files
"""
"""A command, the fewest and the most of its arguments (- if there is no limit), options without a value beside -quiet
and -verbose, and options with one. Not all options are listed, but those that a script uses."""


def _parse(line: str) -> tuple[str, Command]:
    head, flags, options = line.split("|")
    name, least, most = head.split()
    limit = None if most == "-" else int(most)
    return name, Command(f"quiet verbose {flags}", options, int(least), limit)


COMMANDS = dict(map(_parse, re.findall(r"^\w.*", _SYNTAX, re.MULTILINE)))
"""By name."""


class Ip(NamedTuple):
    """Names of an IP, separated by spaces; ``#`` stands for a digit."""

    inputs: str = ""
    """Pins that must be driven."""
    inputs_beside: Mapping[str, str] = {}
    """Pins that must be driven if another pin or a bus is connected, with that one's name."""
    outputs: str = ""
    buses: str = ""


IPS = {
    "axis_data_fifo": Ip("s_axis_aclk s_axis_aresetn", buses="S_AXIS M_AXIS"),
    "hbm": Ip(
        "HBM_REF_CLK_0 HBM_REF_CLK_1 APB_0_PCLK APB_1_PCLK APB_0_PRESET_N APB_1_PRESET_N",
        {"AXI_##_ACLK": "SAXI_##", "AXI_##_ARESET_N": "SAXI_##"},
        "DRAM_0_STAT_CATTRIP DRAM_1_STAT_CATTRIP",
        "SAXI_##",
    ),
    "proc_sys_reset": Ip("slowest_sync_clk ext_reset_in", outputs="peripheral_aresetn"),
    "smartconnect": Ip("aclk aresetn", buses="S##_AXI M##_AXI"),
    "util_ds_buf": Ip("", {"BUFG_I": "BUFG_O"}, "BUFG_O IBUF_OUT IBUF_DS_ODIV2", "CLK_IN_D"),
    "util_vector_logic": Ip("Op1 Op2", outputs="Res"),
    "xdma": Ip("sys_clk sys_clk_gt sys_rst_n", outputs="axi_aclk axi_aresetn", buses="M_AXI M_AXI_LITE pcie_mgt"),
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
