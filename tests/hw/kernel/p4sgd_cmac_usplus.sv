// Stands for the vendor's MAC in simulation: the ports that the kernel connects, and what PG203 says of them.
//
// There is no line. With all transceivers in loopback (near-end PMA) the lanes are aligned a while after reset, and frames
// come back in order. A frame whose first byte is BAD_BYTE comes back as one with a wrong check sequence; one that begins
// with FAULT is followed by a remote fault of the other end. A gap within a frame that is being sent is told by tx_unfout.
// Of its inputs for test and debugging none may be set, and without lanes its user must signal a remote fault (PG203).
module p4sgd_cmac_usplus #(
    parameter [7:0] BAD_BYTE = 8'hBD,
    parameter [7:0] CORRECTED_BYTE = 8'hC0,
    parameter [31:0] FAULT = 32'hFA17_FA17
) (
    input          sys_reset, init_clk, gt_ref_clk_p, gt_ref_clk_n, rx_clk,
    input  [3:0]   gt_rxp_in, gt_rxn_in,
    output [3:0]   gt_txp_out, gt_txn_out, gt_powergoodout,
    input  [11:0]  gt_loopback_in,
    output         gt_txusrclk2,
    input          gtwiz_reset_tx_datapath, gtwiz_reset_rx_datapath, core_tx_reset, core_rx_reset, core_drp_reset,
    output reg     usr_tx_reset, usr_rx_reset,
    input  [511:0] tx_axis_tdata,
    input  [63:0]  tx_axis_tkeep,
    input          tx_axis_tlast, tx_axis_tuser, tx_axis_tvalid,
    output         tx_axis_tready, tx_ovfout,
    output reg     tx_unfout,
    input  [55:0]  tx_preamblein,
    output [511:0] rx_axis_tdata,
    output [63:0]  rx_axis_tkeep,
    output         rx_axis_tlast, rx_axis_tuser, rx_axis_tvalid,
    input          ctl_tx_enable, ctl_tx_send_idle, ctl_tx_send_rfi, ctl_tx_send_lfi, ctl_tx_test_pattern,
    input          ctl_rx_enable, ctl_rx_force_resync, ctl_rx_test_pattern, ctl_rsfec_ieee_error_indication_mode,
    input          ctl_tx_rsfec_enable, ctl_rx_rsfec_enable, ctl_rx_rsfec_enable_correction,
    input          ctl_rx_rsfec_enable_indication,
    output         stat_rx_aligned, stat_rx_local_fault, stat_rx_remote_fault, stat_rx_hi_ber,
    output [19:0]  stat_rx_block_lock,
    output [2:0]   stat_rx_bad_fcs,
    output         stat_rx_rsfec_lane_alignment_status, stat_rx_rsfec_am_lock0, stat_rx_rsfec_am_lock1,
    output         stat_rx_rsfec_am_lock2, stat_rx_rsfec_am_lock3,
    output         stat_rx_rsfec_corrected_cw_inc, stat_rx_rsfec_uncorrected_cw_inc,
    input          drp_clk, drp_en, drp_we,
    input  [9:0]   drp_addr,
    input  [15:0]  drp_di
);
    localparam LOOPBACK = 12'b010_010_010_010;
    localparam ENTRY = 512 + 64 + 1 + 1;

    assign gt_txusrclk2 = gt_ref_clk_p;
    assign gt_powergoodout = 4'hF;
    assign {gt_txp_out, gt_txn_out} = 8'h0F;
    assign tx_ovfout = 1'b0;

    // Out of reset, then lanes that are received, then lanes that are aligned.
    reg [6:0] age = 0;
    wire away = gt_loopback_in != LOOPBACK || !ctl_rx_enable;
    always @(posedge gt_txusrclk2) begin
        if (sys_reset) age <= 0;
        else if (gtwiz_reset_rx_datapath && age > 20) age <= 20;  // the sending side keeps running
        else if (age < 40 || (age < 100 && !away)) age <= age + 1;
        else if (away) age <= 40;
        usr_tx_reset <= sys_reset || age < 20;
        usr_rx_reset <= sys_reset || age < 30;
    end
    assign stat_rx_aligned = age == 100;
    assign stat_rx_local_fault = !stat_rx_aligned;
    assign stat_rx_hi_ber = 1'b0;

    // Lanes are received one after the other. With RS-FEC, which is set when the MAC leaves reset, a bad frame comes of an
    // uncorrected codeword, and a good one of a corrected one if its first byte is CORRECTED_BYTE.
    reg fec = 0;
    always @(posedge gt_txusrclk2) if (age < 20) fec <= ctl_rx_rsfec_enable;
    assign stat_rx_block_lock = age > 60 ? 20'hFFFFF : age > 50 ? 20'h3FF : 20'h0;
    assign {stat_rx_rsfec_am_lock3, stat_rx_rsfec_am_lock2, stat_rx_rsfec_am_lock1, stat_rx_rsfec_am_lock0}
        = {4{fec && age > 45}};
    assign stat_rx_rsfec_lane_alignment_status = fec && stat_rx_aligned;
    assign stat_rx_bad_fcs = {2'b0, rx_axis_tvalid && rx_axis_tlast && rx_axis_tuser};
    assign stat_rx_rsfec_uncorrected_cw_inc = fec && stat_rx_bad_fcs[0];
    reg starts = 1;
    assign stat_rx_rsfec_corrected_cw_inc
        = fec && rx_axis_tvalid && starts && rx_axis_tdata[7:0] == CORRECTED_BYTE;

    // The line is a queue. Random numbers stop both ends now and then.
    reg [ENTRY-1:0] line [0:255];
    reg [7:0] head = 0, tail = 0;
    reg [15:0] random = 16'hACE1;
    reg in_frame = 0, bad = 0;
    reg rfi = 0;
    reg skips = 0;  // reception was reset within a frame, of which no more comes
    always @(posedge gt_txusrclk2) begin
        if (rx_axis_tvalid) starts <= rx_axis_tlast;
        if (usr_tx_reset) {starts, skips} <= 2'b10;
        else if (usr_rx_reset && !starts) {starts, skips} <= 2'b11;
        else if (head != tail && rx_axis_tlast) skips <= 0;
    end
    reg [9:0] fault = 0;
    assign stat_rx_remote_fault = rfi || fault != 0;
    always @(posedge gt_txusrclk2) begin
        if (rx_axis_tvalid && starts && rx_axis_tdata[31:0] == FAULT) fault <= 10'h3FF;
        else if (fault != 0) fault <= fault - 1;
    end
    reg [5:0] silent = 0;
    always @(posedge gt_txusrclk2) begin
        silent <= usr_tx_reset || stat_rx_aligned || ctl_tx_send_rfi ? 6'd0 : silent + 6'd1;
        if (silent == 6'd63) $fatal(1, "no remote fault is signalled while no lanes are aligned");
    end
    // A packet that is being transmitted when ctl_tx_enable falls is transmitted to its end (PG203).
    wire has_room = (tail - head) < (in_frame ? 8'd250 : 8'd200);
    assign tx_axis_tready = (ctl_tx_enable || in_frame) && !usr_tx_reset && has_room && random[3:0] != 0;
    wire takes = tx_axis_tvalid && tx_axis_tready;
    wire is_bad = in_frame ? bad : tx_axis_tdata[7:0] == BAD_BYTE;
    assign rx_axis_tvalid = head != tail && !skips && stat_rx_aligned && random[7:6] != 0;
    assign {rx_axis_tuser, rx_axis_tlast, rx_axis_tkeep, rx_axis_tdata} = line[head];
    always @(posedge gt_txusrclk2) begin
        random <= {random[14:0], random[15] ^ random[13] ^ random[12] ^ random[10]};
        rfi <= ctl_tx_send_rfi && stat_rx_aligned;
        tx_unfout <= in_frame && !tx_axis_tvalid;
        if (takes) begin
            line[tail] <= {is_bad && tx_axis_tlast, tx_axis_tlast, tx_axis_tkeep, tx_axis_tdata};
            tail <= tail + 1;
            in_frame <= !tx_axis_tlast;
            bad <= is_bad;
        end
        if (rx_axis_tvalid || (skips && head != tail)) head <= head + 1;
        if (usr_tx_reset) begin  // loses what is on the line, the begun frame of a kernel before its reset too
            in_frame <= 0;
            head <= tail;
        end
    end

    // What must not be set, and what must be the same.
    wire wrong = gtwiz_reset_tx_datapath | core_tx_reset | core_rx_reset | tx_axis_tuser
        | (|tx_preamblein) | ctl_tx_send_idle | ctl_tx_send_lfi | ctl_tx_test_pattern | ctl_rx_force_resync
        | ctl_rx_test_pattern | ctl_rsfec_ieee_error_indication_mode | core_drp_reset | drp_clk | (|drp_addr)
        | (|drp_di) | drp_en | drp_we | (rx_clk != gt_txusrclk2) | (ctl_tx_rsfec_enable != ctl_rx_rsfec_enable)
        | (ctl_rx_rsfec_enable_correction != ctl_rx_rsfec_enable)
        | (ctl_rx_rsfec_enable_indication != ctl_rx_rsfec_enable);
    always @(posedge gt_txusrclk2) if (wrong) $fatal(1, "the MAC's inputs are not as they must be");
    /* verilator lint_off UNUSEDSIGNAL */
    wire unused = &{init_clk, gt_ref_clk_n, gt_rxp_in, gt_rxn_in};
    /* verilator lint_on UNUSEDSIGNAL */
endmodule
