# Procedures of the scripts package_<kernel>.tcl, which package a kernel as IP for Vivado, and as an .xo file for v++.
# What the tools write goes to the folder out beside this file.

namespace eval p4sgd {
    variable folder [file dirname [file normalize [info script]]]
    variable kernel {}
}

proc p4sgd::out {args} {
    variable folder
    return [file join $folder out {*}$args]
}

# A project with the kernel's Verilog.
proc p4sgd::open_kernel {name top part} {
    variable folder
    variable kernel $name
    create_project -force -part $part $name [out $name]
    add_files -norecurse [file join $folder $top.v]
    set_property top $top [current_fileset]
}

# A script that adds the vendor's IP to the project.
proc p4sgd::ip {file} {
    variable folder
    source [file join $folder $file]
}

# Constraints for every instance of the kernel. They are read late, because they need the clocks of the design.
proc p4sgd::constraints {file} {
    variable folder
    set path [file join $folder $file]
    add_files -fileset constrs_1 -norecurse $path
    set_property PROCESSING_ORDER LATE [get_files $path]
    set_property USED_IN {implementation} [get_files $path]
}

# Packages the project as IP, which becomes the current core. Vivado finds AXI buses by the names of their ports.
proc p4sgd::make_core {vendor library version} {
    variable kernel
    update_compile_order -fileset sources_1
    ipx::package_project -root_dir [out $kernel ip] -vendor $vendor -library $library -taxonomy /KernelIP \
        -import_files -set_current true
    set core [ipx::current_core]
    set_property name $kernel $core
    set_property version $version $core
    set_property display_name $kernel $core
    foreach parameter [ipx::get_user_parameters -of_objects $core] {
        ipx::remove_user_parameter [get_property NAME $parameter] $core
    }
}

# Clock and reset; the clock may have another frequency than the one that is given.
proc p4sgd::clock {hertz} {
    set core [ipx::current_core]
    ipx::infer_bus_interface ap_clk xilinx.com:signal:clock_rtl:1.0 $core
    ipx::infer_bus_interface ap_rst_n xilinx.com:signal:reset_rtl:1.0 $core
    ipx::associate_bus_interfaces -clock ap_clk -reset ap_rst_n $core
    set frequency [ipx::add_bus_parameter -quiet FREQ_HZ [interface ap_clk]]
    set_property value $hertz $frequency
    set_property value_resolve_type user $frequency
}

# A bus; an error if there is none of this name.
proc p4sgd::interface {name} {
    set found [ipx::get_bus_interfaces $name -of_objects [ipx::current_core]]
    if {[llength $found] == 0} {
        error "Vivado has found no bus $name among the ports of the kernel"
    }
    return $found
}

# Associates a bus with ap_clk.
proc p4sgd::bus {name} {
    interface $name
    ipx::associate_bus_interfaces -busif $name -clock ap_clk [ipx::current_core]
}

# A memory port, with its longest burst in beats and the numbers of outstanding reads and writes. All beats have the full
# width of the port (UG1393 requires it), so interconnects need no logic to pack narrow ones.
proc p4sgd::memory {name beats reads writes} {
    bus $name
    foreach {parameter value} [list \
        MAX_BURST_LENGTH $beats \
        NUM_READ_OUTSTANDING $reads \
        NUM_WRITE_OUTSTANDING $writes \
        SUPPORTS_NARROW_BURST 0 \
    ] {
        set property [ipx::add_bus_parameter -quiet $parameter [interface $name]]
        set_property value $value $property
        set_property value_source constant $property
    }
}

# The bus of the registers, with the size of their address space in bytes.
proc p4sgd::control {name bytes} {
    variable registers
    bus $name
    set map [ipx::add_memory_map -quiet $name [ipx::current_core]]
    set_property slave_memory_map_ref $name [interface $name]
    set registers [ipx::add_address_block -quiet reg0 $map]
    set_property range $bytes $registers
    set_property width 32 $registers
}

# A register, with its description.
proc p4sgd::register {name offset bits text} {
    variable registers
    set register [ipx::add_register -quiet $name $registers]
    set_property description $text $register
    set_property address_offset $offset $register
    set_property size $bits $register
    return $register
}

# Bits of a register.
proc p4sgd::field {register name low bits text} {
    set field [ipx::add_field -quiet $name $register]
    set_property description $text $field
    set_property bit_offset $low $field
    set_property bit_width $bits $field
}

# A register with the address that a memory port reads from.
proc p4sgd::pointer {name offset memory} {
    set register [register $name $offset 64 "address of $memory"]
    set_property value $memory [ipx::add_register_parameter -quiet ASSOCIATED_BUSIF $register]
}

# A bus of another kind, with a list of its signals and their ports.
proc p4sgd::add_interface {name mode kind signals} {
    set core [ipx::current_core]
    set interface [ipx::add_bus_interface $name $core]
    set_property interface_mode $mode $interface
    set_property abstraction_type_vlnv xilinx.com:interface:${kind}_rtl:1.0 $interface
    set_property bus_type_vlnv xilinx.com:interface:$kind:1.0 $interface
    foreach {signal port} $signals {
        set_property physical_name $port [ipx::add_port_map $signal $interface]
    }
}

# A clock port without a bus interface, so that v++ connects it as the link configuration says.
proc p4sgd::plain_clock {port} {
    ipx::remove_bus_interface -quiet $port [ipx::current_core]
}

# Writes the IP to out/<kernel>/ip.
proc p4sgd::write_core {} {
    set core [ipx::current_core]
    set_property supported_families {} $core
    set_property auto_family_support_level level_2 $core
    ipx::create_xgui_files $core
    ipx::update_checksums $core
    ipx::check_integrity $core
    ipx::save_core $core
    close_project -delete
}

# Writes the IP, and out/<kernel>.xo with it.
proc p4sgd::write_kernel {xml} {
    variable folder
    variable kernel
    set_property sdx_kernel true [ipx::current_core]
    set_property sdx_kernel_type rtl [ipx::current_core]
    write_core
    package_xo -force -xo_path [out $kernel.xo] -kernel_name $kernel -ip_directory [out $kernel ip] \
        -kernel_xml [file join $folder $xml]
}
