# Procedures of the scripts that implement a module on its own, out of context, to report its size and timing.
# What the tools write goes to the folder out beside this file.

namespace eval p4sgd {
    variable folder [file dirname [file normalize [info script]]]
}

# Synthesises, places and routes a module; reports go to out/<name>.
proc p4sgd::out_of_context {name top part verilog constraints} {
    variable folder
    set out [file join $folder out $name]
    file mkdir $out
    read_verilog [file join $folder $verilog]
    read_xdc -mode out_of_context [file join $folder $constraints]
    synth_design -top $top -part $part -mode out_of_context -flatten_hierarchy rebuilt
    write_checkpoint -force [file join $out synthesised.dcp]
    reports $out synthesised
    opt_design
    place_design
    phys_opt_design
    route_design
    write_checkpoint -force [file join $out routed.dcp]
    reports $out routed
}

proc p4sgd::reports {out stage} {
    report_timing_summary -max_paths 10 -report_unconstrained -file [file join $out timing_$stage.rpt]
    report_utilization -hierarchical -hierarchical_depth 4 -file [file join $out utilisation_$stage.rpt]
    report_utilization -slr -file [file join $out dies_$stage.rpt]
    report_drc -file [file join $out rules_$stage.rpt]
}
