#   make bitstream  the bitstream of the board, and its verdict: takes hours
#   make worker     reports of the worker alone, in out/worker
#   make engine     reports of one engine, in out/engine
#   make check      whether Vivado is there
#   make clean      removes what Vivado wrote

VIVADO := vivado -mode batch -nojournal -notrace

.PHONY: bitstream worker engine check clean
.DELETE_ON_ERROR:

VERDICT := out/gates/verdict.txt

bitstream: $(BITSTREAM)
	@cat $(VERDICT)
	@if grep -q '^FAILED' $(VERDICT); then \
	    echo "$(BITSTREAM) is there, but not to be used: the reports in $(dir $(VERDICT)) say why" >&2; \
	    exit 2; \
	fi

check:
	@command -v vivado >/dev/null || { \
	    echo "vivado is not on the path: source settings64.sh of Vivado $(lastword $(RELEASES)), or install it" >&2; \
	    exit 2; \
	}
	@release=$$(vivado -version 2>/dev/null | sed -n 's/.*v\([0-9]*\.[0-9]*\).*/\1/p' | head -n 1); \
	case " $(RELEASES) " in *" $$release "*) exit 0;; esac; \
	echo "vivado is of release $${release:-?}; this folder is for $(RELEASES):" \
	    "use one of these, or say make RELEASES=$$release to try" >&2; \
	exit 2

worker engine: | check
	mkdir -p out
	$(VIVADO) -log out/$@.log -source $@.tcl

# A kernel may have constraints; one with the vendor's IP needs the script that makes the IP, and those of the MAC.
.SECONDEXPANSION:

out/%/ip/component.xml: package_%.tcl package_kernel.tcl %_kernel.v $$(wildcard $$*_ip.tcl $$*_debug.tcl $$*.xdc) $$(if $$(wildcard $$*_ip.tcl),p4sgd_cmac.xdc) | check
	mkdir -p out
	$(VIVADO) -log out/$*.log -source package_$*.tcl

$(BITSTREAM): project.tcl block_design.tcl gates.tcl board.xdc $(KERNELS:%=out/%/ip/component.xml) | check
	mkdir -p out
	rm -f $(VERDICT)
	$(VIVADO) -log out/project.log -source project.tcl

clean:
	rm -rf out .Xil *.log *.jou *.str
