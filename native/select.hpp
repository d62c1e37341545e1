// Chooses the best entries of every row. Compares only, so it needs no tier.
#pragma once

#include <cstdint>

namespace deskside {

// out[r] = the `count` largest columns of scores[r], ascending, then -1 in place of those at -inf.
// Ties go to the lower column, NaN counts as the largest. count <= columns.
void select(const float* scores, int rows, int columns, int count, std::int64_t* out);

}  // namespace deskside
