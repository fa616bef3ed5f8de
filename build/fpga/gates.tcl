# Procedures that report on a routed design and judge it. Reports are for people: what is judged are the objects that
# Vivado has found, so it does not depend on the form of a text, except for power and bus skew, of which there are none.

namespace eval p4sgd {
    variable folder [file dirname [file normalize [info script]]]
    variable verdict {}
}

# Writes the reports, and verdict.txt: a line for each check, which begins with passed, FAILED or noted, and names its
# report. The script goes on after a failure, so that hours of routing are not lost; the Makefile ends with an error.
#
# place: folder in out.
# watts: most that the FPGA may take.
# cells: patterns for the cells of this project. In those of AMD's shell and IP others have weighed violations.
proc p4sgd::judge {place watts cells} {
    variable folder
    variable verdict {}
    set out [file join $folder out {*}$place]
    file mkdir $out
    set own {}
    foreach pattern $cells {
        set found [get_cells -quiet -hierarchical -filter "NAME =~ $pattern"]
        if {[llength $found] == 0} {
            add FAILED cdc.rpt "no cell is called $pattern, so its clock crossings are not known"
        }
        lappend own {*}$found
    }
    if {[llength $own] != 0} {
        check $out cdc.rpt {
            report_cdc -details -cells $own -file $path
            judge_violations cdc.rpt [get_cdc_violations] Critical "unsafe clock crossings"
        }
        check $out methodology.rpt {
            report_methodology -cells $own -file $path
            judge_violations methodology.rpt [get_methodology_violations] {Error {Critical Warning}} \
                "critical violations of the methodology"
        }
    }
    check $out timing.rpt {
        report_timing_summary -max_paths 10 -report_unconstrained -file $path
        judge_slack setup max
        judge_slack hold min
    }
    check $out bus_skew.rpt {judge_skew $path}
    check $out power.rpt {judge_power $path $watts}
    check $out dies.rpt {
        report_utilization -slr -file $path
        add noted dies.rpt "lines between dies, and what each die is filled with"
    }
    check $out suggestions.rpt {
        report_qor_suggestions -file $path
        add noted suggestions.rpt "[llength [get_qor_suggestions]] suggestions for better results"
    }
    write [file join $out verdict.txt] [join $verdict \n]
}

# Makes a report and judges it; $path is its file. An error of a command fails, and does not stop the rest.
proc p4sgd::check {out report script} {
    upvar path path
    set path [file join $out $report]
    if {[catch {uplevel $script} message]} {
        add FAILED $report "cannot be judged: $message"
    }
}

proc p4sgd::add {result report text} {
    variable verdict
    lappend verdict "[format %-6s $result] $report: $text"
}

proc p4sgd::write {path text} {
    set file [open $path w]
    puts $file $text
    close $file
}

# Severities that are listed fail, all others are counted.
proc p4sgd::judge_violations {report violations failing what} {
    set failed 0
    foreach violation $violations {
        incr failed [expr {[get_property SEVERITY $violation] in $failing && ![in_debug_core $violation]}]
    }
    set others [expr {[llength $violations] - $failed}]
    add [expr {$failed ? "FAILED" : "passed"}] $report "$failed $what, $others of less weight"
}

# Whether a violation is in a debug core, or on the way into one. These are AMD's too, and have no outputs. They are
# called as their kind, see hw/verilog.py. UG835 (get_cdc_violations) has how cells of a violation are found.
proc p4sgd::in_debug_core {violation} {
    foreach cell [get_cells -quiet -of_objects $violation] {
        if {[regexp {/(ila|vio)/} $cell]} {
            return 1
        }
    }
    return 0
}

# The least slack of all paths. A design without any fails, too: its clocks were lost.
proc p4sgd::judge_slack {name delay} {
    set slack {}
    set path [get_timing_paths -delay_type $delay -max_paths 1]
    if {[llength $path] != 0} {
        set slack [get_property SLACK [lindex $path 0]]
    }
    if {![string is double -strict $slack]} {
        add FAILED timing.rpt "no path has a $name slack"
    } else {
        add [expr {$slack < 0 ? "FAILED" : "passed"}] timing.rpt "the least $name slack is $slack ns"
    }
}

# Bits of a pointer in Gray code that come more than a cycle apart: the summary of timing does not have them.
proc p4sgd::judge_skew {path} {
    set text [report_bus_skew -return_string]
    write $path $text
    set failed [regexp -all {Slack \(VIOLATED\)} $text]
    add [expr {$failed ? "FAILED" : "passed"}] bus_skew.rpt "$failed buses with too much skew"
}

proc p4sgd::judge_power {path watts} {
    set text [report_power -return_string]
    write $path $text
    if {![regexp {Total On-Chip Power \(W\)\s*\|\s*([0-9.]+)} $text -> found]} {
        add FAILED power.rpt "there is no total"
    } else {
        add [expr {$found > $watts ? "FAILED" : "passed"}] power.rpt "$found W are estimated, of $watts at most"
    }
}
