// Sums of three numbers, as an UltraScale+ slice makes them (UG574, "Look-Up Table"): both outputs of a LUT are used, and
// a bit takes one LUT. Vendors' tools do that; yosys by itself makes a carry-save adder of two LUTs a bit.
//
//     O6 = a ^ b ^ c ^ d    the carry chain's select
//     O5 = majority(a, b, c), the next bit's d

(* techmap_celltype = "$macc_v2" *)
module _80_ternary_adder (A, B, C, Y);
    parameter NPRODUCTS = 0;
    parameter NADDENDS = 0;
    parameter A_WIDTHS = 0;
    parameter B_WIDTHS = 0;
    parameter C_WIDTHS = 0;
    parameter Y_WIDTH = 0;
    parameter PRODUCT_NEGATED = 0;
    parameter ADDEND_NEGATED = 0;
    parameter A_SIGNED = 0;
    parameter B_SIGNED = 0;
    parameter C_SIGNED = 0;

    input A, B;
    input [C_WIDTHS[15:0] + C_WIDTHS[31:16] + C_WIDTHS[47:32] - 1:0] C;
    output [Y_WIDTH - 1:0] Y;

    genvar i;
    generate
        if (NPRODUCTS != 0 || NADDENDS != 3 || ADDEND_NEGATED != 0) begin: other
            wire _TECHMAP_FAIL_ = 1;
        end else begin: ternary
            localparam W0 = C_WIDTHS[15:0];
            localparam W1 = C_WIDTHS[31:16];
            localparam W2 = C_WIDTHS[47:32];
            localparam LENGTH = 4 * ((Y_WIDTH + 3) / 4); // whole CARRY4s

            wire [LENGTH - 1:0] a = {{LENGTH{C_SIGNED[0] & C[W0 - 1]}}, C[0 +: W0]};
            wire [LENGTH - 1:0] b = {{LENGTH{C_SIGNED[1] & C[W0 + W1 - 1]}}, C[W0 +: W1]};
            wire [LENGTH - 1:0] c = {{LENGTH{C_SIGNED[2] & C[W0 + W1 + W2 - 1]}}, C[W0 + W1 +: W2]};
            wire [LENGTH:0] d;
            wire [LENGTH - 1:0] select, carry, sum;
            assign d[0] = 1'b0;
            assign Y = sum;

            for (i = 0; i < LENGTH; i = i + 1) begin: bits
                if (i < Y_WIDTH) begin
                    LUT6_2 #(.INIT(64'h6996_6996_e8e8_e8e8)) lut (
                        .I0(a[i]), .I1(b[i]), .I2(c[i]), .I3(d[i]), .I4(1'b0), .I5(1'b1),
                        .O5(d[i + 1]), .O6(select[i])
                    );
                end else begin
                    assign select[i] = 1'b0;
                    assign d[i + 1] = 1'b0;
                end
            end
            for (i = 0; i < LENGTH; i = i + 4) begin: chain
                wire first = i == 0 ? 1'b0 : carry[i == 0 ? 0 : i - 1];
                CARRY4 carry4 (
                    .CYINIT(1'b0), .CI(first), .DI(d[i +: 4]), .S(select[i +: 4]), .O(sum[i +: 4]), .CO(carry[i +: 4])
                );
            end
        end
    endgenerate
endmodule
