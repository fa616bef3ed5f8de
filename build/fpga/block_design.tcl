# Procedures of project.tcl: a worker with its MAC, the host's PCI Express and high-bandwidth memory, without a shell.
#
#   xdma ─ M_AXI ──────▶ smartconnect ▶ hbm SAXI_<channel>        (a free one, else shared with the labels)
#     │    M_AXI_LITE ─▶ smartconnect ▶ worker, cmac: registers
#     axi_aclk, 250 MHz, for all
#   worker m_axi_gmem<i> ▶ smartconnect ▶ hbm SAXI_<channel>      (bursts of AXI4 become those of AXI3)
#   worker axis_tx, axis_rx ◀ FIFOs ▶ cmac ◀▶ qsfp0

namespace eval p4sgd {
    variable folder [file dirname [file normalize [info script]]]
    variable registers 0
}

proc p4sgd::cell {name vlnv parameters} {
    set cell [create_bd_cell -type ip -vlnv $vlnv $name]
    set named {}
    foreach {parameter value} $parameters {
        lappend named CONFIG.$parameter $value
    }
    if {[llength $named] != 0} {
        set_property -dict $named $cell
    }
}

proc p4sgd::wire {from args} {
    foreach to $args {
        connect_bd_net [get_bd_pins $from] [get_bd_pins $to]
    }
}

proc p4sgd::bus_between {from to} {
    connect_bd_intf_net [get_bd_intf_pins $from] [get_bd_intf_pins $to]
}

# A stream between kernels, through a FIFO as v++ makes it: no ready signal has to cross dies within a cycle.
proc p4sgd::stream_between {from to} {
    set fifo [string map {/ _} $from]_fifo
    cell $fifo xilinx.com:ip:axis_data_fifo {FIFO_DEPTH 16}
    wire xdma/axi_aclk $fifo/s_axis_aclk
    wire xdma/axi_aresetn $fifo/s_axis_aresetn
    bus_between $from $fifo/S_AXIS
    bus_between $fifo/M_AXIS $to
}

# A bus of the board, of one of the vendor's kinds.
proc p4sgd::outside {name mode kind pin} {
    create_bd_intf_port -mode $mode -vlnv xilinx.com:interface:${kind}_rtl:1.0 $name
    connect_bd_intf_net [get_bd_intf_ports $name] [get_bd_intf_pins $pin]
}

# PCI Express, generation 3 with 16 lanes; its clock of 250 MHz is that of all logic.
proc p4sgd::add_host {quad block} {
    cell pcie_clock xilinx.com:ip:util_ds_buf {C_BUF_TYPE IBUFDSGTE}
    cell xdma xilinx.com:ip:xdma [list \
        mode_selection Advanced \
        pcie_blk_locn $block \
        en_gt_selection true \
        select_quad $quad \
        pl_link_cap_max_link_width X16 \
        pl_link_cap_max_link_speed 8.0_GT/s \
        axi_data_width 512_bit \
        axisten_freq 250 \
        xdma_axi_intf_mm AXI_Memory_Mapped \
        axilite_master_en true \
        axilite_master_size 1 \
        axilite_master_scale Megabytes \
    ]
    outside pcie_refclk Slave diff_clock pcie_clock/CLK_IN_D
    outside pcie Master pcie_7x_mgt xdma/pcie_mgt
    create_bd_port -dir I -type rst pcie_perst_n
    connect_bd_net [get_bd_ports pcie_perst_n] [get_bd_pins xdma/sys_rst_n]
    wire pcie_clock/IBUF_DS_ODIV2 xdma/sys_clk
    wire pcie_clock/IBUF_OUT xdma/sys_clk_gt
    cell control xilinx.com:ip:smartconnect {NUM_SI 1 NUM_MI 2}
    bus_between xdma/M_AXI_LITE control/S00_AXI
    wire xdma/axi_aclk control/aclk
    wire xdma/axi_aresetn control/aresetn
}

# High-bandwidth memory with the ports of some channels; every port reaches all channels.
proc p4sgd::add_memory {channels} {
    cell board_clock xilinx.com:ip:util_ds_buf {C_BUF_TYPE IBUFDS}
    cell global_clock xilinx.com:ip:util_ds_buf {C_BUF_TYPE BUFG}
    outside hbm_refclk Slave diff_clock board_clock/CLK_IN_D
    wire board_clock/IBUF_OUT global_clock/BUFG_I
    set parameters [list \
        USER_HBM_DENSITY 8GB \
        USER_HBM_STACK 2 \
        USER_APB_EN false \
        USER_XSDB_INTF_EN FALSE \
        USER_SWITCH_ENABLE_00 TRUE \
        USER_SWITCH_ENABLE_01 TRUE \
        USER_HBM_REF_CLK_0 100 \
        USER_HBM_REF_CLK_1 100 \
        USER_AXI_INPUT_CLK_FREQ 250 \
        USER_AXI_INPUT_CLK1_FREQ 250 \
    ]
    # Controllers refresh one bank at a time while others are read (these parameters are those of
    # github.com/netlab-wisconsin/rPCIeBench). To refresh all at once takes 260 ns of 3.9 us, in which no lines come.
    for {set controller 0} {$controller < 16} {incr controller} {
        lappend parameters USER_MC${controller}_EN_SBREF true USER_MC${controller}_LOOKAHEAD_SBRF true
    }
    for {set channel 0} {$channel < 32} {incr channel} {
        lappend parameters USER_SAXI_[format %02d $channel] [expr {$channel in $channels ? "true" : "false"}]
    }
    # The clock of each stack is that of one of its ports (PG276). The IP's choice, ports 0 and 16, may not be there.
    foreach channel [lreverse $channels] {
        set clock([expr {$channel / 16}]) AXI_[format %02d $channel]_ACLK
    }
    foreach stack {0 1} {
        lappend parameters USER_CLK_SEL_LIST$stack $clock($stack)
    }
    cell hbm xilinx.com:ip:hbm $parameters
    wire global_clock/BUFG_O hbm/HBM_REF_CLK_0 hbm/HBM_REF_CLK_1 hbm/APB_0_PCLK hbm/APB_1_PCLK
    cell memory_reset xilinx.com:ip:proc_sys_reset {}
    wire global_clock/BUFG_O memory_reset/slowest_sync_clk
    wire xdma/axi_aresetn memory_reset/ext_reset_in
    wire memory_reset/peripheral_aresetn hbm/APB_0_PRESET_N hbm/APB_1_PRESET_N
    # The card switches itself off if this pin is open.
    cell too_hot xilinx.com:ip:util_vector_logic {C_OPERATION or C_SIZE 1}
    wire hbm/DRAM_0_STAT_CATTRIP too_hot/Op1
    wire hbm/DRAM_1_STAT_CATTRIP too_hot/Op2
    create_bd_port -dir O hbm_cattrip
    connect_bd_net [get_bd_ports hbm_cattrip] [get_bd_pins too_hot/Res]
}

# Connects masters to the port of a channel; each is followed by the channels that it reaches, whose addresses are mapped.
proc p4sgd::connect_memory {channel masters} {
    set port SAXI_[format %02d $channel]
    set converter converter_[format %02d $channel]
    cell $converter xilinx.com:ip:smartconnect [list NUM_SI [expr {[llength $masters] / 2}] NUM_MI 1]
    bus_between $converter/M00_AXI hbm/$port
    wire xdma/axi_aclk $converter/aclk hbm/AXI_[format %02d $channel]_ACLK
    wire xdma/axi_aresetn $converter/aresetn hbm/AXI_[format %02d $channel]_ARESET_N
    set input 0
    foreach {master reached} $masters {
        bus_between $master $converter/S[format %02d $input]_AXI
        incr input
        foreach number $reached {
            assign_bd_address -offset [format 0x%X [expr {$number << 28}]] -range 256M \
                -target_address_space [get_bd_addr_spaces $master] \
                [get_bd_addr_segs hbm/$port/HBM_MEM[format %02d $number]]
        }
    }
}

# A kernel, already packaged as IP, with its registers at an address of the host's.
proc p4sgd::add_kernel {name vlnv offset} {
    variable registers
    cell $name $vlnv {}
    wire xdma/axi_aclk $name/ap_clk
    wire xdma/axi_aresetn $name/ap_rst_n
    bus_between control/M[format %02d $registers]_AXI $name/s_axi_control
    assign_bd_address -offset $offset -range 4K -target_address_space [get_bd_addr_spaces xdma/M_AXI_LITE] \
        [get_bd_addr_segs $name/s_axi_control/reg0]
    incr registers
}

# The MAC's lanes and clocks.
proc p4sgd::connect_port {mac} {
    outside qsfp0_refclk Slave diff_clock $mac/gt_refclk
    outside qsfp0 Master gt $mac/gt_serial
    wire global_clock/BUFG_O $mac/clk_gt_freerun
}

# A project with the kernels' IP, and an empty block design.
proc p4sgd::open_project {name part kernels} {
    variable folder
    set repositories {}
    foreach kernel $kernels {
        lappend repositories [file join $folder out $kernel ip]
    }
    create_project -force -part $part $name [file join $folder out $name]
    set_property ip_repo_paths $repositories [current_project]
    update_ip_catalog
    create_bd_design board
}

# Checks the block design and makes the bitstream, out/<name>/<name>.runs/impl_1/board_wrapper.bit. The routed design is
# open then.
proc p4sgd::make_bitstream {constraints jobs} {
    variable folder
    validate_bd_design
    save_bd_design
    set design [get_files board.bd]
    generate_target all $design
    make_wrapper -top -import -files $design
    add_files -fileset constrs_1 -norecurse [file join $folder $constraints]
    set_property top board_wrapper [current_fileset]
    update_compile_order -fileset sources_1
    launch_runs -jobs $jobs -to_step write_bitstream impl_1
    wait_on_run impl_1
    if {[get_property PROGRESS [get_runs impl_1]] ne "100%"} {
        error "the implementation has failed: see its log in out"
    }
    open_run impl_1
}
