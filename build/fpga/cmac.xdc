# Signals between the kernel's clock and the MAC's, in a MAC's kernel; to be read for each instance of it.
#
# A signal that crosses passes a synchronizer, or is stable when it is sampled: words in a FIFO, whose pointers tell
# when they are valid, and counters, for which the host waits. So paths must be short, but need not meet a given edge.

set kernel_clock [get_clocks -of_objects [get_ports ap_clk]]
set free_clock [get_clocks -of_objects [get_ports clk_gt_freerun]]
set mac_clock [get_clocks -of_objects [get_pins mac/gt_txusrclk2]]
set_max_delay -datapath_only -from $kernel_clock -to $mac_clock 3.1
set_max_delay -datapath_only -from $mac_clock -to $kernel_clock 3.1
set_max_delay -datapath_only -from $free_clock -to $kernel_clock 3.1
set_max_delay -datapath_only -from $kernel_clock -to $free_clock 3.1

# A FIFO's pointer is in Gray code: one bit changes at a time, so it arrives intact if no bit is a cycle later than
# another.

set_bus_skew \
    -from [get_cells {adapter/tx_crossing/produce_w_gry_reg[*]}] \
    -to [get_cells {adapter/tx_crossing/produce_cdc/stage0_reg[*]}] 3.1
set_bus_skew \
    -from [get_cells {adapter/tx_crossing/consume_r_gry_reg[*]}] \
    -to [get_cells {adapter/tx_crossing/consume_cdc/stage0_reg[*]}] 3.1
set_bus_skew \
    -from [get_cells {adapter/rx_crossing/produce_w_gry_reg[*]}] \
    -to [get_cells {adapter/rx_crossing/produce_cdc/stage0_reg[*]}] 3.1
set_bus_skew \
    -from [get_cells {adapter/rx_crossing/consume_r_gry_reg[*]}] \
    -to [get_cells {adapter/rx_crossing/consume_cdc/stage0_reg[*]}] 3.1
set_max_delay -datapath_only -from $mac_clock -to $free_clock 3.1

# Resets are asserted at any time, and released in step with the clock.
set_false_path -to [get_pins {adapter/start_reset/*_reg/PRE adapter/shown_reset/*_reg/PRE adapter/*/rst_cdc/*_reg/PRE}]

# What report_cdc cannot know to be safe. Anything else in the adapter that it calls critical is an error.
create_waiver -type CDC -id CDC-11 -user p4sgd -description {each ends the reset of another side of a FIFO, in any order} \
    -from [get_pins {adapter/mac_rst_reg/C}] \
    -to [get_pins {adapter/mac_reset_crossing/stage0_reg/D adapter/rx_crossing/rst_cdc/*_reg/PRE}]
create_waiver -type CDC -id CDC-1 -user p4sgd -description {a snapshot stands still from before the pulse that tells of it until the next, and is read only then} \
    -from [get_pins {adapter/counters/shown_held_reg[*]/C}]
create_waiver -type CDC -id CDC-4 -user p4sgd -description {a snapshot stands still from before the pulse that tells of it until the next, and is read only then} \
    -from [get_pins {adapter/counters/shown_held_reg[*]/C}]
create_waiver -type CDC -id CDC-6 -user p4sgd -description {Gray code: one bit changes at a time, and set_bus_skew holds bits together} \
    -from [get_pins {adapter/tx_crossing/produce_w_gry_reg[*]/C}] \
    -to [get_pins {adapter/tx_crossing/produce_cdc/stage0_reg[*]/D}]
create_waiver -type CDC -id CDC-6 -user p4sgd -description {Gray code: one bit changes at a time, and set_bus_skew holds bits together} \
    -from [get_pins {adapter/tx_crossing/consume_r_gry_reg[*]/C}] \
    -to [get_pins {adapter/tx_crossing/consume_cdc/stage0_reg[*]/D}]
create_waiver -type CDC -id CDC-6 -user p4sgd -description {Gray code: one bit changes at a time, and set_bus_skew holds bits together} \
    -from [get_pins {adapter/rx_crossing/produce_w_gry_reg[*]/C}] \
    -to [get_pins {adapter/rx_crossing/produce_cdc/stage0_reg[*]/D}]
create_waiver -type CDC -id CDC-6 -user p4sgd -description {Gray code: one bit changes at a time, and set_bus_skew holds bits together} \
    -from [get_pins {adapter/rx_crossing/consume_r_gry_reg[*]/C}] \
    -to [get_pins {adapter/rx_crossing/consume_cdc/stage0_reg[*]/D}]
