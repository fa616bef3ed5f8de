// The main program of cocotb's models, for waveforms of a part of the design and of the time. Arguments:
//
//   +waves_scope=NAME   only what is in this instance, which is named from the top module on: cluster.worker0
//   +waves_begin=TIME   from this time on, in ps, the steps of simulated time
//   +waves_end=TIME     until before this time

#include <cstdint>
#include <cstdlib>
#include <string>

#include "Vtop.h"
#include "verilated.h"
#include "verilated_fst_c.h"

namespace {

class Waveform final : public VerilatedFstC {
    std::string m_file;
    uint64_t m_begin = 0;
    uint64_t m_end = UINT64_MAX;

    static std::string argument(const std::string& name) {
        const std::string start = name + "=";
        const std::string found = Verilated::commandArgsPlusMatch(start.c_str());
        return found.empty() ? found : found.substr(1 + start.size());  // it begins with +
    }

public:
    void open(const char* file) override {
        const std::string scope = argument("waves_scope"), begin = argument("waves_begin"), end = argument("waves_end");
        if (!scope.empty()) dumpvars(99, scope);
        if (!begin.empty()) m_begin = std::strtoull(begin.c_str(), nullptr, 10);
        if (!end.empty()) m_end = std::strtoull(end.c_str(), nullptr, 10);
        m_file = file;
    }

    void dump(uint64_t now) {
        if (now < m_begin || now >= m_end) return;
        if (!isOpen()) VerilatedFstC::open(m_file.c_str());  // not before: readers refuse files without a time
        VerilatedFstC::dump(now);
    }
};

}  // namespace

#define VerilatedFstC Waveform
#include "verilator.cpp"
