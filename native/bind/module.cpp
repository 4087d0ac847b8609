// The Python face of the native core: checks shapes, releases the GIL, calls. No arithmetic lives here.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>

#include "sampling.hpp"
#include "tiltyard/ceilings.hpp"
#include "tiltyard/isa.hpp"
#include "tiltyard/model.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace tiltyard;

namespace {

KvPrecision kv_precision(const std::string& name) {
    if (name == "f16") return KvPrecision::f16;
    if (name == "int8") return KvPrecision::int8;
    refuse("precision is '" + name + "'; it must be 'f16' or 'int8'");
}

// What a pass runs; where its results go is for the caller to say.
Batch checked_batch(const Model& model, Ids tokens, Ids positions, Ids sequences,
                    Array<const int32_t, 2> tables, Ids output_rows, std::optional<Ids> adapters,
                    const char* name, Array<float, 2> outputs, int width) {
    check_length("positions", positions.size(), tokens.size());
    check_length("sequences", sequences.size(), tokens.size());
    check_length(name, outputs.shape(0), output_rows.size());
    if (adapters) check_length("adapters", adapters->size(), tables.shape(0));
    if (outputs.shape(1) != (size_t)width)
        refuse(std::string(name) + " has rows of " + std::to_string(outputs.shape(1)) + "; the model's " +
               (width == model.shape().vocab ? "vocabulary has " : "width is ") + std::to_string(width));
    return {size_of(tokens.size(), "tokens"),
            size_of(tables.shape(0), "tables"),
            size_of(tables.shape(1), "tables"),
            size_of(output_rows.size(), "output_rows"),
            tokens.data(),
            positions.data(),
            sequences.data(),
            tables.data(),
            output_rows.data(),
            nullptr,
            nullptr,
            adapters ? adapters->data() : nullptr};
}

void forward(Model& model, Ids tokens, Ids positions, Ids sequences, Array<const int32_t, 2> tables,
             Ids output_rows, Array<float, 2> logits, std::optional<Ids> adapters) {
    Batch batch = checked_batch(model, tokens, positions, sequences, tables, output_rows, adapters, "logits",
                                logits, model.shape().vocab);
    batch.logits = logits.data();
    nb::gil_scoped_release release;
    model.forward(batch);
}

void embed(Model& model, Ids tokens, Ids positions, Ids sequences, Array<const int32_t, 2> tables,
           Ids output_rows, Array<float, 2> hidden, std::optional<Ids> adapters) {
    Batch batch = checked_batch(model, tokens, positions, sequences, tables, output_rows, adapters, "hidden",
                                hidden, model.shape().dim);
    batch.hidden = hidden.data();
    nb::gil_scoped_release release;
    model.forward(batch);
}

Activation activation(const std::string& name) {
    if (name == "silu") return Activation::silu;
    if (name == "gelu") return Activation::gelu;
    refuse("activation is '" + name + "'; it must be 'silu' or 'gelu'");
}

RopeStyle rope_style(const std::string& name) {
    if (name == "adjacent") return RopeStyle::adjacent;
    if (name == "halves") return RopeStyle::halves;
    refuse("rope_style is '" + name + "'; it must be 'adjacent' or 'halves'");
}

int add_adapter(Model& model, float scale, nb::dict matrices) {
    using Matrix = Array<const float, 2>;
    std::vector<Model::LowRankTensor> tensors;
    std::vector<std::pair<Matrix, Matrix>> kept;  // holds the arrays while they are read
    for (const auto& [name, pair] : matrices) {
        kept.push_back(nb::cast<std::pair<Matrix, Matrix>>(pair, false));
        const auto& [down, up] = kept.back();
        const std::string known = nb::cast<std::string>(name);
        if (down.shape(0) != up.shape(1))
            refuse(known + ": down has rank " + std::to_string(down.shape(0)) + ", up " +
                   std::to_string(up.shape(1)));
        tensors.push_back({known, size_of(down.shape(0), "down"), size_of(up.shape(0), "up"),
                           size_of(down.shape(1), "down"), down.data(), up.data()});
    }
    nb::gil_scoped_release release;
    return model.add_adapter(scale, tensors);
}

nb::dict operator_seconds(Model& model) {
    nb::dict seconds;
    const auto values = model.operator_seconds();
    for (int i = 0; i < kOperators; i++) seconds[kOperatorNames[i]] = values[i];
    return seconds;
}

nb::dict multiply_adds(const Model& model) {
    nb::dict uses;
    const MultiplyAdds m = model.multiply_adds();
    uses["layers_int4"] = m.layers[0], uses["layers_int8"] = m.layers[1], uses["layers_float"] = m.layers[2];
    uses["head_int4"] = m.head[0], uses["head_int8"] = m.head[1], uses["head_float"] = m.head[2];
    return uses;
}

nb::dict ceilings(const std::string& isa, int threads, size_t read_bytes, double seconds) {
    if (threads < 1 || threads > 256) refuse("threads is " + std::to_string(threads) + "; use 1 to 256");
    Ceilings found;
    {
        nb::gil_scoped_release release;
        found = measure_ceilings(isa, threads, read_bytes, seconds);
    }
    nb::dict rates;
    rates["read_bytes"] = found.read_bytes, rates["int4"] = found.int4, rates["int8"] = found.int8;
    return rates;
}

nb::dict expert_counters(const Model& model) {
    const ExpertCounters c = model.expert_counters();
    nb::dict counters;
    counters["hits"] = c.hits, counters["misses"] = c.misses, counters["bytes_read"] = c.bytes_read;
    counters["resident"] = c.resident, counters["slots"] = c.slots;
    counters["slot_bytes"] = c.slot_bytes, counters["file_bytes"] = c.file_bytes;
    counters["least_bytes"] = c.least_bytes;
    return counters;
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() =
        "The compiled core: a forward pass over paged KV, and sampling. See docs/numerics.md for its "
        "contract.";
    m.attr("BLOCK_TOKENS") = kBlockTokens;
    m.attr("NUMERICS_VERSION") = 1;
    m.attr("PACKING_VERSION") = kPackingVersion;

    nb::class_<Model>(m, "NativeModel",
                      "A decoder-only transformer; the same logits, bit for bit, in any batch.")
        .def(
            "__init__",
            [](Model* self, int n_layers, int n_heads, int n_kv_heads, int head_dim, int dim, int ff_dim,
               int vocab_size, int max_positions, float norm_eps, double rope_base, int rope_dim,
               bool tied_embeddings, const std::string& activation_name, const std::string& rope_style_name,
               bool qkv_bias, bool qk_norm, bool post_norms, float embedding_scale, float query_scale,
               const std::vector<int>& windows,
               const std::vector<std::tuple<std::vector<double>, double>>& rope_tables,
               const std::vector<int>& layer_rope, bool rope_factors, int n_experts, int n_experts_used,
               int expert_ff_dim, bool normalize_experts, int threads, const std::string& isa) {
                ModelShape shape{n_layers,   n_heads,       n_kv_heads, head_dim,  dim,      ff_dim,
                                 vocab_size, max_positions, norm_eps,   rope_base, rope_dim, tied_embeddings};
                shape.activation = activation(activation_name);
                shape.rope_style = rope_style(rope_style_name);
                shape.qkv_bias = qkv_bias, shape.qk_norm = qk_norm, shape.post_norms = post_norms;
                shape.embedding_scale = embedding_scale, shape.query_scale = query_scale;
                shape.windows = windows, shape.layer_rope = layer_rope, shape.rope_factors = rope_factors;
                shape.experts = n_experts, shape.experts_used = n_experts_used;
                shape.expert_ff = expert_ff_dim, shape.normalize_experts = normalize_experts;
                for (const auto& [frequency, amplitude] : rope_tables)
                    shape.rope_tables.push_back({frequency, amplitude});
                new (self) Model(shape, threads, isa);
            },
            nb::kw_only(), "n_layers"_a, "n_heads"_a, "n_kv_heads"_a, "head_dim"_a, "dim"_a, "ff_dim"_a,
            "vocab_size"_a, "max_positions"_a, "norm_eps"_a, "rope_base"_a, "rope_dim"_a, "tied_embeddings"_a,
            "activation"_a = "silu", "rope_style"_a = "adjacent", "qkv_bias"_a = false, "qk_norm"_a = false,
            "post_norms"_a = false, "embedding_scale"_a = 1.0f, "query_scale"_a = 0.0f,
            "windows"_a = std::vector<int>(),
            "rope_tables"_a = std::vector<std::tuple<std::vector<double>, double>>(),
            "layer_rope"_a = std::vector<int>(), "rope_factors"_a = false, "n_experts"_a = 0,
            "n_experts_used"_a = 0, "expert_ff_dim"_a = 0, "normalize_experts"_a = true, "threads"_a, "isa"_a,
            "Dimensions as in the GGUF header; what follows `tied_embeddings` is off as in Llama.\n\n"
            "query_scale 0 is 1 / sqrt(head_dim). windows: positions that each layer sees, 0 for all. "
            "rope_tables:\n"
            "(frequencies, amplitude) from tiltyard.kernels.rope, one of rope_base if empty; layer_rope: "
            "which "
            "of them\n"
            "each layer uses. Raises ValueError naming the field that is out of range.")
        .def(
            "set_tensor",
            [](Model& model, const std::string& name, int type, Bytes data, std::optional<int> requantize) {
                const GgmlType from = ggml_type(type);
                std::optional<GgmlType> to;
                if (requantize) to = ggml_type(*requantize);
                nb::gil_scoped_release release;
                model.set_tensor(name, from, data.data(), data.size(), to);
            },
            "name"_a, "ggml_type"_a, "data"_a.noconvert(), "requantize"_a = nb::none(),
            "Pack one tensor from its raw GGUF bytes; `data` is not kept. `requantize`: Q4_0 (2), Q4_1 (3), "
            "Q8_0 (8) "
            "or None.")
        .def(
            "offload_experts",
            [](Model& model, const std::string& directory, size_t memory_bytes) {
                model.offload_experts(directory, memory_bytes);
            },
            "directory"_a, "memory_bytes"_a,
            "Keep experts in an unnamed file in `directory`, and in memory as many as fit. Call it before "
            "the "
            "first\ntensor. Raises RuntimeError if no file can be made; `finish` raises ValueError for too "
            "little "
            "memory.")
        .def(
            "set_packed",
            [](Model& model, const std::string& name, int form, Bytes data, uint64_t checksum) {
                // The tiles are read in finish: until then the array must live, and its memory with it.
                auto* held = new Bytes(data);
                const std::shared_ptr<const void> keeper(held, [](Bytes* array) {
                    nb::gil_scoped_acquire acquire;
                    delete array;
                });
                nb::gil_scoped_release release;
                model.set_packed(name, form, data.data(), data.size(), checksum, keeper);
            },
            "name"_a, "form"_a, "data"_a.noconvert(), "checksum"_a,
            "Set a matrix from what packed_matrix of an equal model gave; `data` is kept until finish. "
            "Raises\n"
            "ValueError when size or checksum do not fit.")
        .def(
            "packed_matrix",
            [](Model& model, const std::string& name) {
                const PackedMatrix& matrix = model.packed_matrix(name);
                std::unique_ptr<uint8_t[]> tiles(new uint8_t[matrix.bytes()]);
                uint64_t sum;
                {
                    nb::gil_scoped_release release;
                    matrix.copy_tiles(tiles.get());
                    sum = model.checksum(tiles.get(), matrix.bytes());
                }
                return std::make_tuple((int)matrix.form(), owned(std::move(tiles), matrix.bytes()), sum);
            },
            "name"_a,
            "A matrix as it lies in memory: (form, its tiles as uint8, their checksum). Only set_packed of a "
            "build with\n"
            "the same PACKING_VERSION understands it.")
        .def("finish", &Model::finish, nb::call_guard<nb::gil_scoped_release>(),
             "Raises ValueError naming the tensors that are missing.")
        .def("add_adapter", &add_adapter, "scale"_a, "matrices"_a,
             nb::sig("def add_adapter(self, scale: float, matrices: dict[str, "
                     "tuple[NDArray[numpy.float32], NDArray[numpy.float32]]]) -> int"),
             "Add a LoRA adapter and return its number for `forward`, from 1 on.\n\n"
             "matrices: (down [rank, columns], up [rows, rank]) float32 by the name of the matrix that they "
             "adapt; "
             "y becomes\ny + scale * up @ (down @ x). Raises ValueError naming the tensor that does not fit.")
        .def(
            "allocate_kv",
            [](Model& model, int blocks, const std::string& precision) {
                model.allocate_kv(blocks, kv_precision(precision));
            },
            "blocks"_a, "precision"_a,
            "Reserve KV blocks of 32 tokens; memory is committed when a block is written.")
        .def(
            "forward", &forward, "tokens"_a.noconvert(), "positions"_a.noconvert(), "sequences"_a.noconvert(),
            "tables"_a.noconvert(), "output_rows"_a.noconvert(), "logits"_a.noconvert(), nb::kw_only(),
            "adapters"_a.noconvert() = nb::none(),
            "Run T rows of any sequences: store their keys and values, write the logits of `output_rows`.\n\n"
            "tokens, positions, sequences: int32 [T]; tables: int32 [S, W] of KV blocks, position p lies in "
            "block\n"
            "tables[s, p // 32]; output_rows: int32 [R]; logits: float32 [R, vocab], written; adapters: "
            "int32\n[S], as add_adapter numbers them, 0 for none. Releases the GIL.\n"
            "Raises ValueError, before anything is touched, for an index out of range.")
        .def("embed", &embed, "tokens"_a.noconvert(), "positions"_a.noconvert(), "sequences"_a.noconvert(),
             "tables"_a.noconvert(), "output_rows"_a.noconvert(), "hidden"_a.noconvert(), nb::kw_only(),
             "adapters"_a.noconvert() = nb::none(),
             "As `forward`, but writes what the head would have multiplied: the final norm's output.\n\n"
             "hidden: float32 [R, dim], written.")
        .def(
            "choose_rows",
            [](Model& model, Array<float, 2> logits, Floats temperature, Ids top_k, Floats top_p,
               Floats min_p, Array<const uint64_t, 1> seeds, Array<const int64_t, 1> positions, Ids masked,
               Array<const uint32_t, 2> masks, Ids top) {
                const auto shared = [&](int rows, const RowJob& job) { model.for_rows(rows, job); };
                return choose(model.kernels(), model.threads(), shared, logits,
                              {temperature, top_k, top_p, min_p, seeds, positions}, masked, masks, top);
            },
            TILTYARD_CHOOSE_ARGUMENTS,
            "Tokens as sample_rows does, of rows that may be masked, on the threads of `forward`.\n\n"
            "masks: uint32 [M, (V + 31) // 32], for the rows that `masked` names: a token comes only where "
            "bit "
            "i % 32\nof word i // 32 is 1; those rows are changed. top [R]: how many of the likeliest tokens "
            "are asked for, -1 for\nno log probabilities. Returns tokens [R], -1 where a mask leaves none; "
            "log "
            "probabilities [R] at temperature 1,\nbefore the mask; the likeliest tokens and theirs, [R, "
            "max(top)] "
            "each. Raises ValueError naming the row.")
        .def(
            "copy_block",
            [](Model& model, int source, int target) {
                nb::gil_scoped_release release;
                model.copy_block(source, target);
            },
            "source"_a, "target"_a)
        .def(
            "read_block",
            [](Model& model, int block) {
                std::vector<uint8_t> bytes(model.kv_bytes_per_block());
                {
                    nb::gil_scoped_release release;
                    model.read_block(block, bytes.data());
                }
                return nb::bytes(bytes.data(), bytes.size());
            },
            "block"_a,
            "The block's bytes; only write_block of the same build and precision understands them.")
        .def(
            "write_block",
            [](Model& model, int block, nb::bytes data) {
                check_length("data", data.size(), model.kv_bytes_per_block());
                nb::gil_scoped_release release;
                model.write_block(block, static_cast<const uint8_t*>(data.data()));
            },
            "block"_a, "data"_a)
        .def("reset_operator_seconds", &Model::reset_operator_seconds)
        .def_prop_ro("operator_seconds", &operator_seconds,
                     nb::sig("def operator_seconds(self) -> dict[str, float]"),
                     "Wall time of each operator since the last reset, waits included.")
        .def_prop_ro(
            "expert_counters", &expert_counters, nb::sig("def expert_counters(self) -> dict[str, int]"),
            "hits and misses (experts that a layer of a step needed: were they in memory?), bytes_read, "
            "resident,\nslots, slot_bytes, file_bytes, least_bytes (the smallest budget, known before "
            "`finish`).")
        .def(
            "expert_uses",
            [](Model& model) {
                const std::vector<uint64_t> uses = model.expert_uses();
                auto copy = std::make_unique<uint64_t[]>(uses.size());
                std::copy(uses.begin(), uses.end(), copy.get());
                return owned(std::move(copy), uses.size());
            },
            "Rows that each expert has served since the model was made, layer by layer.")
        .def_prop_ro("kv_bytes_per_block", &Model::kv_bytes_per_block)
        .def_prop_ro("weight_bytes", &Model::weight_bytes)
        .def_prop_ro("multiply_adds", &multiply_adds, nb::sig("def multiply_adds(self) -> dict[str, int]"),
                     "Of the matrices, for one row: by weight type, in the layers and in the output matrix.")
        .def_prop_ro("threads", &Model::threads)
        .def_prop_ro("isa", [](const Model& model) { return std::string(model.isa()); });

    m.def("ceilings", &ceilings, nb::kw_only(), "isa"_a, "threads"_a, "read_bytes"_a, "seconds"_a,
          nb::sig(
              "def ceilings(*, isa: str, threads: int, read_bytes: int, seconds: float) -> dict[str, float]"),
          "What this machine can do at most, a second: `read_bytes` from a memory of that size, `int4` and "
          "`int8` "
          "multiply-adds.");
    m.def("native_isas", &available_isas, "Instruction sets that this build and this CPU share, best first.");
    bind_sampling(m);
}
