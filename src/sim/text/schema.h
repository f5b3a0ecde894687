/* SPDX-License-Identifier: Apache-2.0 */
/* schema: a JSON document that fits a JSON schema, as guided decoding would give one. Simple schemas: type,
 * properties, items, enum, const, anyOf, oneOf, allOf (the first of each), local $ref, minimum, maximum,
 * minItems, minLength. Pure. */
#pragma once
#include "base/json/json.h"

/* |schema| as json_parse accepted it; "true", {} and nonsense give a string. Depth and size are bounded
 * (SIM_SCHEMA_DEPTH; the limit of
 * |o|'s buffer). Draws from |*rng|. */
#define SIM_SCHEMA_DEPTH 24
void sim_schema_fill(struct json_val schema, uint64_t *rng, struct cgn_arena *a, struct json_out *o);
