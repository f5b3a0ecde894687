/* SPDX-License-Identifier: Apache-2.0 */
/* models: an engine's list of models, and what else it says of each. Pure. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/core/arena.h"
#include "base/core/err.h"
#include "base/core/str.h"

#define ENGINE_NAME_MAX    512                  /* Bytes of a model's name */
#define ENGINE_CARD_MAX    1024                 /* Bytes of a model's card */
#define ENGINE_MODELS_TEXT ((size_t)256 * 1024) /* Bytes of all names and cards of a list */

enum engine_model_state {
	ENGINE_MODEL_UNTOLD,  /* The engine says nothing of it: the model is there all the time */
	ENGINE_MODEL_LOADED,  /* Requests go on at once */
	ENGINE_MODEL_LOADING, /* Being loaded */
	ENGINE_MODEL_OUT,     /* The next request loads it */
	ENGINE_MODEL_ASLEEP,  /* The next request wakes it */
};
const char *engine_model_state_text(enum engine_model_state s); /* For people: "loadable" */

/* A name in an engine's list, and the list's facts about it. */
struct engine_model {
	const char *name;
	/* Members of a JSON object, without braces, as the list has them: "max_model_len":4096,... Empty: none */
	const char *card;
	uint64_t created; /* 0: not told */
	uint64_t context; /* Most tokens of a request; 0: not told */
	enum engine_model_state state;
};
struct engine_models {
	struct engine_model *v;
	size_t n;
	size_t left_out; /* Names beyond the bounds */
	uint32_t holds;  /* Models that the engine holds at once; 0: not told */
	uint32_t *table; /* By hash of the name: index in |v| + 1; 0: empty */
	size_t mask;
};
/* Read an OpenAI model list: ids, and llama.cpp's "aliases", without duplicates, in order. At most |max|
 * names, none above ENGINE_NAME_MAX, and at most ENGINE_MODELS_TEXT bytes of names and cards, where names
 * come first. All is in |a|. A card keeps root, max_model_len, meta, capabilities and the like; one above
 * ENGINE_CARD_MAX loses its last members. CGN_BAD_GATEWAY: the body is not such a list. CGN_NO_MEMORY. */
CGN_RC engine_models_read(struct cgn_str body, struct cgn_arena *a, size_t max, struct engine_models *out,
	struct cgn_err *err);
/* NULL: the list has no such name. */
const struct engine_model *engine_models_find(const struct engine_models *m, struct cgn_str name);
/* Return true if both lists have the same names in the same order. */
bool engine_models_named_alike(const struct engine_models *a, const struct engine_models *b);
/* Return true if both lists say the same, but for |created|, which is the time of the answer with some engines. */
bool engine_models_equal(const struct engine_models *a, const struct engine_models *b);

#define ENGINE_SERVED_MAX 512
/* How an engine's list of models and a configured name fit. */
struct engine_named {
	char served[ENGINE_SERVED_MAX +
		1]; /* The engine's only model, which has another name; empty: it knows the configured one */
	bool lacks; /* The list has several models, and none of that name */
	char listed[400]; /* The first names of the list, for people */
};
/* Compare an OpenAI model list with |model|. LoRAs of a model do not count as further models. False: |body|
 * is not such a list, or it has no model: it says nothing. */
bool engine_named_judge(struct cgn_str body, const char *model, struct engine_named *out);
