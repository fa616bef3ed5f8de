// A memory behind an AXI4 port for tests, in Verilog 2005: one read and one write at a time, 1,024 beats.
module axi_memory #(parameter BITS = 64, parameter NUMBER = 0) (
  input clk,
  input rst,
  input done,
  input [63:0] awaddr,
  input [7:0] awlen,
  input [2:0] awsize,
  input [1:0] awburst,
  input awid,
  input awlock,
  input [3:0] awcache,
  input [2:0] awprot,
  input [3:0] awqos,
  input awvalid,
  output awready,
  input [BITS-1:0] wdata,
  input [BITS/8-1:0] wstrb,
  input wlast,
  input wvalid,
  output wready,
  output [1:0] bresp,
  output bid,
  output reg bvalid,
  input bready,
  input [63:0] araddr,
  input [7:0] arlen,
  input [2:0] arsize,
  input [1:0] arburst,
  input arid,
  input arlock,
  input [3:0] arcache,
  input [2:0] arprot,
  input [3:0] arqos,
  input arvalid,
  output arready,
  output [BITS-1:0] rdata,
  output [1:0] rresp,
  output rlast,
  output rid,
  output reg rvalid,
  input rready
);
  localparam LOW = $clog2(BITS / 8);
  localparam [7:0] DIGIT = 8'd48 + NUMBER[7:0];
  reg [BITS-1:0] words [0:1023];
  reg [9:0] read_at, write_at;
  reg [7:0] left;
  reg writing;
  integer i;
`ifndef SYNTHESIS
  initial $readmemh({"memory", DIGIT, ".hex"}, words);
  always @(posedge done) $writememh({"after", DIGIT, ".hex"}, words);
`endif

  assign arready = !rvalid;
  assign rdata = words[read_at];
  assign rlast = left == 8'd0;
  assign awready = !writing & !bvalid;
  assign wready = writing;
  assign {bresp, bid, rresp, rid} = 6'd0;
  always @(posedge clk) begin
    if (!rvalid) begin
      read_at <= araddr[LOW+9:LOW];
      left <= arlen;
      rvalid <= arvalid & !rst;
    end else if (rready) begin
      read_at <= read_at + 10'd1;
      left <= left - 8'd1;
      rvalid <= !rlast & !rst;
    end
    if (!writing) begin
      write_at <= awaddr[LOW+9:LOW];
      writing <= awvalid & awready & !rst;
    end else if (wvalid) begin
      for (i = 0; i < BITS / 8; i = i + 1) if (wstrb[i]) words[write_at][8*i +: 8] <= wdata[8*i +: 8];
      write_at <= write_at + 10'd1;
      writing <= !wlast & !rst;
    end
    bvalid <= ((writing & wvalid & wlast) | (bvalid & !bready)) & !rst;
    if (rst) begin
      rvalid <= 1'b0;
      writing <= 1'b0;
    end
  end
  wire unused = &{awaddr, awlen, awsize, awburst, awid, awlock, awcache, awprot, awqos, wlast, araddr, arsize, arburst,
                  arid, arlock, arcache, arprot, arqos};
endmodule
