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
