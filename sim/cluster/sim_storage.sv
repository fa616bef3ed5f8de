// Contents of a simulated memory bank, loaded from and saved to files while the simulation runs.
//
// Files lie in the folder that the plus argument +memory=<folder> names. Loading reads FILE, raw bytes from address 0 up;
// what the file does not reach keeps its value. Saving writes FILE.txt: the range of words "first last" that was written
// through the port since the last load or save, in decimal and without the last; one line "index data", in hexadecimal,
// for each of them; and "end". Writing reports no errors here, so the reader checks that all of it is there. Byte 0 of a
// word is its lowest byte.

module sim_storage #(
    parameter WIDTH = 64,
    parameter ADDRESS_BITS = 10,
    parameter FILE = "memory.bin"
) (
    input wire clk,
    input wire read_enable,
    input wire [ADDRESS_BITS-1:0] read_address,
    output reg [WIDTH-1:0] read_data,
    input wire write_enable,
    input wire [ADDRESS_BITS-1:0] write_address,
    input wire [WIDTH-1:0] write_data,
    input wire [WIDTH/8-1:0] write_strobe,
    input wire load,
    input wire save
);
    // $fread fills a word from its highest byte, so words are kept with their bytes reversed.
    reg [WIDTH-1:0] memory [0:(1<<ADDRESS_BITS)-1];
    reg [ADDRESS_BITS:0] first, last;
    reg loaded, saved;
    string folder;
    integer file, status, index;

    function automatic [WIDTH-1:0] reversed(input [WIDTH-1:0] word);
        for (int i = 0; i < WIDTH / 8; i++) reversed[8*i +: 8] = word[WIDTH - 8 - 8*i +: 8];
    endfunction

    initial begin
        first = {1'b1, {ADDRESS_BITS{1'b0}}};
        last = 0;
        loaded = 0;
        saved = 0;
        if (!$value$plusargs("memory=%s", folder)) folder = ".";
    end

    always @(posedge clk) begin
        loaded <= load;
        saved <= save;
        if (read_enable) read_data <= reversed(memory[read_address]);
        if (write_enable) begin
            for (int i = 0; i < WIDTH / 8; i++)
                if (write_strobe[i]) memory[write_address][WIDTH - 8 - 8*i +: 8] <= write_data[8*i +: 8];
            if ({1'b0, write_address} < first) first <= {1'b0, write_address};
            if ({1'b0, write_address} >= last) last <= {1'b0, write_address} + 1;
        end
        // verilator lint_off BLKSEQ
        // Files are opened, moved and closed step by step within one clock edge.
        if (load & ~loaded) begin
            file = $fopen({folder, "/", FILE}, "rb");
            if (file == 0) $fatal(1, "cannot open %s/%s", folder, FILE);
            status = $fread(memory, file);
            $fclose(file);
            first <= {1'b1, {ADDRESS_BITS{1'b0}}};
            last <= 0;
        end
        if (save & ~saved) begin
            file = $fopen({folder, "/", FILE, ".txt"}, "w");
            if (file == 0) $fatal(1, "cannot write %s/%s.txt", folder, FILE);
            $fwrite(file, "%0d %0d\n", first, last);
            for (index = int'(first); index < int'(last); index = index + 1)
                $fwrite(file, "%h %h\n", index, reversed(memory[index]));
            $fwrite(file, "end\n");
            $fclose(file);
            first <= {1'b1, {ADDRESS_BITS{1'b0}}};
            last <= 0;
        end
        // verilator lint_on BLKSEQ
    end
endmodule
