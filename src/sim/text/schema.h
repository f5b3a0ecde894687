/* SPDX-License-Identifier: Apache-2.0 */
/* schema: a JSON document that fits a JSON schema, as guided decoding would generate one. Supports type,
 * properties, items, enum, const, anyOf, oneOf, allOf (the first of each), local $ref, minimum, maximum,
 * minItems, minLength. Pure. */
#pragma once
#include "base/json/json.h"

/* Write a document that fits |schema|, which json_parse accepted; "true", {} and unknown schemas give a
 * string. Depth is limited to SIM_SCHEMA_DEPTH, size by the limit of |o|'s buffer. Draws from |*rng|. */
#define SIM_SCHEMA_DEPTH 24
void sim_schema_fill(struct json_val schema, uint64_t *rng, struct cgn_arena *a, struct json_out *o);
