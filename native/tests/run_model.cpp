// Runs a model that stdin describes and writes its logits to stdout as they lie in memory: how the tests see
// what a build for another machine computes.
//
//   isas                                          -> a line of names
//   model <12 numbers, as in ModelShape>          a new description
//   tensor <name> <ggml type> <bytes>, then the bytes
//   run <isa> <f16|int8> <threads> <tokens>, then int32 tokens -> float32 [tokens][vocab]
#include <cstdio>
#include <iostream>
#include <map>
#include <numeric>

#include "tiltyard/isa.hpp"
#include "tiltyard/model.hpp"

using namespace tiltyard;

namespace {

struct Tensor {
    GgmlType type;
    std::vector<uint8_t> bytes;
};

template <class T>
std::vector<T> read(size_t count) {
    std::vector<T> values(count);
    std::cin.get();  // the end of the line before
    std::cin.read(reinterpret_cast<char*>(values.data()), (std::streamsize)(count * sizeof(T)));
    return values;
}

std::vector<float> logits_of(const ModelShape& shape, const std::map<std::string, Tensor>& tensors,
                             const std::string& isa, const std::string& kv, int threads,
                             const std::vector<int32_t>& tokens) {
    Model model(shape, threads, isa);
    for (const auto& [name, tensor] : tensors)
        model.set_tensor(name, tensor.type, tensor.bytes.data(), tensor.bytes.size(), std::nullopt);
    model.finish();
    const int rows = (int)tokens.size(), width = (rows + kBlockTokens - 1) / kBlockTokens;
    model.allocate_kv(width, kv == "int8" ? KvPrecision::int8 : KvPrecision::f16);
    std::vector<int32_t> positions(rows), sequence(rows, 0), table(width);
    std::iota(positions.begin(), positions.end(), 0);
    std::iota(table.begin(), table.end(), 0);
    std::vector<float> logits((size_t)rows * shape.vocab);
    model.forward({rows, 1, width, rows, tokens.data(), positions.data(), sequence.data(), table.data(),
                   positions.data(), logits.data()});
    return logits;
}

}  // namespace

int main() {
    ModelShape shape{};
    std::map<std::string, Tensor> tensors;
    std::string command, name, kv;
    while (std::cin >> command) {
        if (command == "isas") {
            for (const auto& isa : available_isas()) std::cout << isa << ' ';
            std::cout << std::endl;
        } else if (command == "model") {
            tensors.clear();
            ModelShape& s = shape;
            std::cin >> s.layers >> s.heads >> s.kv_heads >> s.head_dim >> s.dim >> s.ff_dim >> s.vocab >>
                s.max_positions >> s.norm_eps >> s.rope_base >> s.rope_dim >> s.tied_embeddings;
        } else if (command == "tensor") {
            int type;
            size_t bytes;
            std::cin >> name >> type >> bytes;
            tensors[name] = {ggml_type(type), read<uint8_t>(bytes)};
        } else if (command == "run") {
            int threads;
            size_t count;
            std::cin >> name >> kv >> threads >> count;
            const auto logits = logits_of(shape, tensors, name, kv, threads, read<int32_t>(count));
            std::cout.write(reinterpret_cast<const char*>(logits.data()),
                            (std::streamsize)(logits.size() * sizeof(float)));
            std::cout.flush();
        } else {
            std::cerr << "unknown command " << command << '\n';
            return 2;
        }
    }
}
