// Notes the events of all workers in a file while the simulation runs.
//
// While `enable` is set, each worker with events in a cycle adds a line to FILE, in the folder that the plus argument
// +memory=<folder> names: "time worker events", the time in ns, the events as bits in hexadecimal. After LIMIT lines no
// more are written, just counted. The last line is "end count", with the number of lines that there would have been;
// writing reports no errors here, so the reader checks that all of them are there.

module sim_trace #(
    parameter WORKERS = 1,
    parameter EVENTS = 1,
    parameter LIMIT = 1,
    parameter FILE = "events.txt"
) (
    input wire clk,
    input wire enable,
    input wire [WORKERS*EVENTS-1:0] events
);
    string folder;
    integer file, count;

    initial begin
        file = 0;
        count = 0;
        if (!$value$plusargs("memory=%s", folder)) folder = ".";
    end

    always @(posedge clk) if (enable) begin
        // verilator lint_off BLKSEQ
        // A file is opened and written step by step within one clock edge.
        if (file == 0) begin
            file = $fopen({folder, "/", FILE}, "w");
            if (file == 0) $fatal(1, "cannot write %s/%s", folder, FILE);
        end
        for (int i = 0; i < WORKERS; i++)
            if (|events[i*EVENTS +: EVENTS]) begin
                if (count < LIMIT) $fwrite(file, "%0d %0d %0h\n", $time, i, events[i*EVENTS +: EVENTS]);
                count = count + 1;
            end
        // verilator lint_on BLKSEQ
    end

    final if (file != 0) begin
        $fwrite(file, "end %0d\n", count);
        $fclose(file);
    end
endmodule
