#   make                 the xclbin of the board (v++'s target hw), and its verdict: takes hours
#   make TARGET=hw_emu   an xclbin for Vitis' hardware emulator: see README.md
#   make kernels         only the kernels, packed as out/<kernel>.xo
#   make check           whether the tools are there
#   make clean           removes what the tools wrote

TARGET ?= hw
ifeq ($(filter $(TARGET),hw hw_emu),)
$(error TARGET is $(TARGET): set it to hw or hw_emu)
endif

OUT := out
XCLBIN := $(OUT)/$(TARGET)/$(NAME).xclbin
OBJECTS := $(KERNELS_$(TARGET):%=$(OUT)/%.xo)
TOOLS := vivado v++ platforminfo $(if $(filter hw_emu,$(TARGET)),emconfigutil)
# v++ takes files of scripts with their whole path only.
PLACE := $(PLACE_$(TARGET):%=--vivado.prop run.impl_1.STEPS.PLACE_DESIGN.TCL.PRE=$(CURDIR)/%)
JUDGE := $(JUDGE_$(TARGET):%=--vivado.prop run.impl_1.STEPS.ROUTE_DESIGN.TCL.POST=$(CURDIR)/%)
VERDICT := $(JUDGE_$(TARGET):%=$(OUT)/$(TARGET)/gates/verdict.txt)
OTHER_PLATFORM := $(if $(filter-out $(DEFAULT_PLATFORM),$(PLATFORM)),--platform $(PLATFORM))

.PHONY: xclbin kernels check clean
.DELETE_ON_ERROR:

xclbin: $(XCLBIN)
ifneq ($(VERDICT),)
	@cat $(VERDICT)
	@if grep -q '^FAILED' $(VERDICT); then \
	    echo "$(XCLBIN) is there, but not to be used: the reports in $(dir $(VERDICT)) say why" >&2; \
	    exit 2; \
	fi
endif

kernels: $(OBJECTS)

check:
	@for tool in $(TOOLS); do \
	    command -v $$tool >/dev/null || { \
	        echo "$$tool is not on the path: source settings64.sh of Vitis $(lastword $(RELEASES)), or install it" >&2; \
	        exit 2; \
	    }; \
	done
	@for call in "vivado -version" "v++ --version"; do \
	    tool=$${call% *}; \
	    release=$$($$call 2>/dev/null | sed -n 's/.*v\([0-9]*\.[0-9]*\).*/\1/p' | head -n 1); \
	    case " $(RELEASES) " in *" $$release "*) continue;; esac; \
	    echo "$$tool is of release $${release:-?}; the board's shell is for $(RELEASES):" \
	        "use one of these, or say make RELEASES=$$release to try" >&2; \
	    exit 2; \
	done
	@platforminfo --platform $(PLATFORM) >/dev/null 2>&1 || { \
	    echo "platform $(PLATFORM) is not there: install the board's development shell," \
	        "or set PLATFORM to its .xpfm file" >&2; \
	    exit 2; \
	}

# A kernel may have constraints; one with the vendor's IP needs the script that makes the IP, and those of the MAC.
.SECONDEXPANSION:

$(OUT)/%.xo: package_%.tcl package_kernel.tcl %_kernel.v %.xml $$(wildcard $$*_ip.tcl $$*_debug.tcl $$*.xdc) $$(if $$(wildcard $$*_ip.tcl),p4sgd_cmac.xdc) | check
	mkdir -p $(OUT)
	vivado -mode batch -nojournal -notrace -log $(OUT)/$*.log -source package_$*.tcl

$(XCLBIN): $(OBJECTS) link_$(TARGET).cfg $(PLACE_$(TARGET)) $(JUDGE_$(TARGET):%=% gates.tcl) | check
	mkdir -p $(@D)
	rm -rf $(@D)/gates
	v++ --link --target $(TARGET) --config link_$(TARGET).cfg $(OTHER_PLATFORM) $(PLACE) $(JUDGE) \
	    --temp_dir $(@D)/temp --log_dir $(@D)/logs --report_dir $(@D)/reports --output $@ $(OBJECTS)
	$(if $(filter hw_emu,$(TARGET)),emconfigutil --platform $(PLATFORM) --od $(@D))

clean:
	rm -rf $(OUT) .Xil .ipcache *.log *.jou *.str
