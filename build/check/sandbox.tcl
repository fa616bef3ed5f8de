# Runs a script for the vendor's tools without these tools: stand-ins take the place of their commands.
# The script runs in a safe interpreter: it cannot write, and can read nothing but the files of its folder.

namespace eval sandbox {
    variable folder {}
}

# Runs a script and returns records, {call {FILE LINE FILE LINE...} COMMAND ARGUMENT...} for every listed command that it calls and
# {error FILE LINE MESSAGE} for what stops it, or for the vendor's errors that it goes on after. Unit separators stand
# between fields, record separators between records.
#
# commands: for each of the vendor's commands its name, its options without a value, those with a value, and the least
#     and the greatest number of other arguments; the greatest is empty if there is no limit. Commands that are neither
#     listed nor Tcl's own are errors.
# seconds: time after which the script is stopped.
proc sandbox::run {path script commands seconds} {
    variable folder [::file normalize $path]
    set child [interp create -safe]
    interp limit $child time -seconds [expr {[clock seconds] + $seconds}]
    foreach name {source file puts glob open close} {
        interp alias $child $name {} sandbox::$name $child
    }
    interp alias $child exit {} error "the script ends by itself"
    interp eval $child {
        namespace eval vendor {
            variable calls {}
            variable faults {}
            # Results that scripts look at, by command and first argument. All others are names of objects.
            variable answers {"version " 2022.2 "get_property PROGRESS" 100%}
        }

        # Files and lines of the frames that belong to the folder, the innermost first.
        proc vendor::places {} {
            set found {}
            for {set level [expr {[info frame] - 1}]} {$level > 0} {incr level -1} {
                set frame [info frame $level]
                if {[dict get $frame type] eq "source" && ![string match */sandbox.tcl [dict get $frame file]]} {
                    lappend found [lindex [split [dict get $frame file] /] end] [dict get $frame line]
                }
            }
            return [expr {[llength $found] ? $found : {{} 0}}]
        }

        # An error, which is noted: a script may go on after one.
        proc vendor::fault {message} {
            variable faults
            lappend faults [list {*}[lrange [places] 0 1] $message]
            error $message
        }

        proc vendor::answer {name others} {
            variable answers
            set result "$name [lindex $others 0]"
            return [expr {[dict exists $answers $result] ? [dict get $answers $result] : $result}]
        }

        proc vendor::call {name flags options least most args} {
            variable calls
            lappend calls [list [places] $name {*}$args]
            set others {}
            for {set i 0} {$i < [llength $args]} {incr i} {
                set argument [lindex $args $i]
                if {![regexp {^-[a-zA-Z]} $argument]} {
                    lappend others $argument
                } elseif {[string range $argument 1 end] in $options} {
                    if {[incr i] >= [llength $args]} {
                        fault "$name: $argument has no value"
                    }
                } elseif {[string range $argument 1 end] ni $flags} {
                    fault "$name has no option $argument"
                }
            }
            set count [llength $others]
            if {$count < $least || ($most ne {} && $count > $most)} {
                fault "$name takes [expr {$most eq {} ? "$least or more" : "$least to $most"}] arguments, not $count"
            }
            # No cell has the attributes by which Amaranth's scripts look for more to constrain.
            return [expr {[string match *amaranth.vivado.* $args] ? {} : [answer $name $others]}]
        }

        proc unknown {name args} {
            vendor::fault "there is no command $name that this check knows"
        }
    }
    foreach {name flags options least most} $commands {
        if {[namespace qualifiers $name] ne {}} {
            interp eval $child [list namespace eval [namespace qualifiers $name] {}]
        }
        interp eval $child [list interp alias {} $name {} vendor::call $name $flags $options $least $most]
    }
    set records {}
    set failed [catch {source $child [::file join $folder $script]} message details]
    foreach call [interp eval $child {set vendor::calls}] {
        lappend records [list call {*}$call]
    }
    if {$failed} {
        set place [list $script 0]
        regexp {\(file "([^"]*)" line (\d+)\)} [dict get $details -errorinfo] -> file line
        if {[info exists file]} {
            set place [list [::file tail $file] $line]
        }
        lappend records [list error {*}$place $message]
    } else {
        foreach fault [interp eval $child {set vendor::faults}] {
            lappend records [list error {*}$fault]
        }
    }
    interp delete $child
    return [join [lmap record $records {join $record "\x1f"}] "\x1e"]
}

# A file of the folder, as a path; an error if it is another one.
proc sandbox::inside {name} {
    variable folder
    set path [::file normalize [::file join $folder $name]]
    if {[::file dirname $path] ne $folder || ![::file isfile $path]} {
        error "the folder has no file $name"
    }
    return $path
}

proc sandbox::source {child args} {
    interp invokehidden $child source [inside [lindex $args end]]
}

proc sandbox::file {child what args} {
    switch -- $what {
        dirname - join - normalize - rootname - tail - extension {
            return [::file $what {*}$args]
        }
        exists - isfile {
            return [expr {![catch {inside [lindex $args 0]}]}]
        }
        mkdir - delete {
            return
        }
    }
    error "file $what is not for scripts of this folder"
}

proc sandbox::glob {child args} {
    error "name the files: glob finds others, too"
}

proc sandbox::puts {child args} {}

# What a script writes to the folder out is lost.
proc sandbox::open {child path access} {
    variable folder
    if {[string first $folder/out/ [::file normalize [::file join $folder $path]]] != 0 || $access ne "w"} {
        error "open $path is not for scripts of this folder"
    }
    return $path
}

proc sandbox::close {child file} {}

if {[info exists argv0] && [file tail $argv0] eq "sandbox.tcl"} {
    ::puts -nonewline [sandbox::run {*}$argv]
}
