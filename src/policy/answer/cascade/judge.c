/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "policy/answer/cascade/compare.h"

/* Find the next member "embedding" of the list, an array. */
static bool embedding_next(struct json_iter *it, struct json_val *out)
{
	struct json_val one;
	return json_next_elem(it, &one) && json_get(one, "embedding", out) && out->type == JSON_ARRAY;
}

double cascade_similarity(struct cgn_str answer)
{
	struct json_val root, data, a, b, x, y;
	double dot = 0, of_a = 0, of_b = 0, f, g;
	if (!cgn_ok(json_parse(answer, &root, NULL, NULL)) || !json_get(root, "data", &data) ||
		data.type != JSON_ARRAY)
		return (double)NAN;
	struct json_iter list = json_iter_of(data);
	if (!embedding_next(&list, &a) || !embedding_next(&list, &b))
		return (double)NAN;
	struct json_iter at = json_iter_of(b);
	for (struct json_iter it = json_iter_of(a); json_next_elem(&it, &x);) {
		if (!json_next_elem(&at, &y) || !json_f64(x, &f) || !json_f64(y, &g))
			return (double)NAN;
		dot += f * g;
		of_a += f * f;
		of_b += g * g;
	}
	return json_next_elem(&at, &y) ? (double)NAN : dot / sqrt(of_a * of_b); /* without a length: 0 / 0 */
}
