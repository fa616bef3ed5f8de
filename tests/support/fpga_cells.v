// What the cells of an UltraScale+ FPGA do that a platform's designs have, for simulation.

module IBUF (input I, output O);
  assign O = I;
endmodule

module IBUFDS (input I, input IB, output O);
  assign O = I;
endmodule

module OBUFT (input I, input T, output O);
  assign O = T ? 1'bz : I;
endmodule

module BUFG (input I, output O);
  assign O = I;
endmodule

module FDPE #(parameter INIT = 1'b0) (input C, input CE, input D, input PRE, output reg Q = INIT);
  always @(posedge C or posedge PRE)
    if (PRE) Q <= 1'b1;
    else if (CE) Q <= D;
endmodule

// As an adder only, with the parameters and controls of p4sgd.hw.ultrascale; tests compare it with AMD's model.
// verilator lint_off UNUSEDSIGNAL
// verilator lint_off UNUSEDPARAM
module DSP48E2 #(
  parameter AREG = 0, BREG = 0, CREG = 0, PREG = 0, OPMODEREG = 0, ALUMODEREG = 0, ACASCREG = 0, BCASCREG = 0,
  parameter ADREG = 1, DREG = 1, MREG = 1, INMODEREG = 1, CARRYINREG = 1, CARRYINSELREG = 1, USE_MULT = ""
) (
  input CLK, input [29:0] A, input [17:0] B, input [47:0] C, PCIN, input [8:0] OPMODE, input [3:0] ALUMODE,
  input RSTA, RSTB, RSTC, CEA2, CEB2, CEC, CEP, CECTRL, CEALUMODE,
  input [26:0] D, input [29:0] ACIN, input [17:0] BCIN, input [4:0] INMODE, input [2:0] CARRYINSEL,
  input CARRYIN, CARRYCASCIN, MULTSIGNIN, CEA1, CEB1, CED, CEAD, CEM, CEINMODE, CECARRYIN,
  input RSTD, RSTM, RSTP, RSTALLCARRYIN, RSTALUMODE, RSTCTRL, RSTINMODE,
  output [47:0] P, PCOUT
);
  reg [29:0] a = 30'd0;
  reg [17:0] b = 18'd0;
  reg [47:0] c = 48'd0;
  reg [47:0] p = 48'd0;
  reg [8:0] opmode = 9'd0;
  reg [3:0] alumode = 4'd0;
  wire [47:0] w = opmode[7] ? p : 48'd0;
  // Other values of the multiplexer Z mean something else in AMD's cell, so that a wrong one must not pass here.
  wire [47:0] z = opmode[6:4] == 3'd0 ? 48'd0 : opmode[6:4] == 3'd1 ? PCIN : opmode[6:4] == 3'd2 ? p : 48'dx;
  always @(posedge CLK) begin
    a <= RSTA ? 30'd0 : A;
    b <= RSTB ? 18'd0 : B;
    c <= RSTC ? 48'd0 : C;
    opmode <= OPMODE;
    alumode <= ALUMODE;
    p <= alumode == 4'b0011 ? z - (w + {a, b} + c) : z + w + {a, b} + c;
  end
  assign P = p;
  assign PCOUT = p;
endmodule
