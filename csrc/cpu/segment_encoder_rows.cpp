#include "cpu/segment_encoder.h"

namespace sopr::SOPR_LEVEL {
namespace {

// v with zeros in lanes `count` and above.
Float first_lanes(Float v, int64_t count) { return (Float)((Int)v & (Int)(lanes_from(0) < uint32_t(count))); }

Float dropped(Float x, const uint16_t* draws, const DropoutSite& site) {
    return keep(x * site.scale, load_draws(draws), site.threshold);
}

// One row: z = residual + dropout(x), x = norm(z), hat and inverse for backward. z stays in `Vectors` registers, or in
// x if Vectors is 0.
template <int Vectors>
void add_norm_row(const Shape& s, const DropoutSite& site, const Norm& norm, const float* residual,
                  const uint16_t* draws, float* x, float* hat, float* inverse) {
    const int64_t vectors = Vectors ? Vectors : s.pitch / kLanes;
    const float weight = 1.0f / float(s.width);
    Float kept[Vectors ? Vectors : 1], total{}, squares{};
    for (int64_t j = 0; j < vectors; ++j) {
        Float v = load(x + j * kLanes);
        if (draws) v = dropped(v, draws + j * kLanes, site);
        v += load(residual + j * kLanes);
        total += v;
        if (Vectors)
            kept[j] = v;
        else
            store(x + j * kLanes, v);
    }
    const float mean = sum(total) * weight;
    for (int64_t j = 0; j < vectors; ++j) {
        Float v = (Vectors ? kept[j] : load(x + j * kLanes)) - mean;
        if ((j + 1) * kLanes > s.width) v = first_lanes(v, s.width - j * kLanes);
        squares += v * v;
        if (Vectors)
            kept[j] = v;
        else
            store(x + j * kLanes, v);
    }
    const float scale = 1.0f / __builtin_sqrtf(sum(squares) * weight + 1e-5f);
    for (int64_t j = 0; j < vectors; ++j) {
        const Float v = (Vectors ? kept[j] : load(x + j * kLanes)) * scale;
        if (hat) store(hat + j * kLanes, v);
        store(x + j * kLanes, v * load(norm.weight + j * kLanes) + load(norm.bias + j * kLanes));
    }
    if (inverse) *inverse = scale;
}

}  // namespace

// x = norm(residual + dropout(x))
void add_norm(const Shape& s, const Segment& segment, const Norm& norm, const float* residual, const uint16_t* draws,
              float* x, float* hat, float* inverse) {
    const auto row = s.pitch == 4 * kLanes ? add_norm_row<4> : add_norm_row<0>;
    for (int64_t t = 0; t < segment.length; ++t)
        row(s, segment.dropout, norm, residual + t * s.pitch, draws ? draws + t * draws_pitch(s.width) : nullptr,
            x + t * s.pitch, hat ? hat + t * s.pitch : nullptr, inverse ? inverse + t : nullptr);
}

// out = norm of the rows whose normalised values are `hat`, to the bit as in add_norm.
void scale_rows(const Shape& s, int64_t length, const Norm& norm, const float* hat, float* out) {
    for (int64_t t = 0; t < length * s.pitch; t += s.pitch)
        for (int64_t e = 0; e < s.pitch; e += kLanes)
            store(out + t + e, load(hat + t + e) * load(norm.weight + e) + load(norm.bias + e));
}

// grad of the norm's output becomes grad of its input; overwrites `hat`. The padding of grad and hat is zero.
void norm_backward(const Shape& s, int64_t length, const Norm& norm, float* hat, const float* inverse, float* grad,
                   float* grad_weight, float* grad_bias) {
    add_rows(length, s.pitch, s.pitch, grad, grad_bias);
    const float weight = 1.0f / float(s.width);
    for (int64_t t = 0; t < length; ++t) {
        float *g = grad + t * s.pitch, *h = hat + t * s.pitch;
        Float total{}, product{};
        for (int64_t e = 0; e < s.pitch; e += kLanes) {
            const Float w = load(g + e) * load(norm.weight + e);
            total += w;
            product += w * load(h + e);
        }
        const float mean = sum(total) * weight, slope = sum(product) * weight;
        for (int64_t e = 0; e < s.pitch; e += kLanes) {
            const Float v = load(g + e), u = load(h + e);
            Float d = (v * load(norm.weight + e) - mean - u * slope) * inverse[t];
            if (e + kLanes > s.width) d = first_lanes(d, s.width - e);
            store(g + e, d);
            store(h + e, v * u);
        }
    }
    add_rows(length, s.pitch, s.pitch, hat, grad_weight);
}

void drop_rows(const Segment& segment, int64_t columns, int64_t pitch, const float* from, const uint16_t* draws,
               float* to) {
    for (int64_t t = 0; t < segment.length; ++t)
        for (int64_t e = 0; e < pitch; e += kLanes)
            store(to + t * pitch + e,
                  dropped(load(from + t * pitch + e), draws + t * draws_pitch(columns) + e, segment.dropout));
}

// grad = out > 0 ? grad * scale : 0: backward of ReLU, or of ReLU with dropout after it.
void relu_backward(int64_t length, int64_t pitch, const float* out, float scale, float* grad) {
    for (int64_t i = 0; i < length * pitch; i += kLanes)
        store(grad + i, (Float)((Int)(load(grad + i) * scale) & (Int)(load(out + i) > 0.0f)));
}

}  // namespace sopr::SOPR_LEVEL
