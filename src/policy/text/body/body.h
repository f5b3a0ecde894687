/* SPDX-License-Identifier: Apache-2.0 */
/* body: reads the top level of a request's body for a router, in one walk over its members. Pure; any thread;
 * no allocation. The time is linear in the body's bytes. */
#pragma once
#include "base/json/json.h"

/* A body with more members at its top level is refused: no API has a hundredth of them, and each reader of the body
 * walks over all of them. */
#define BODY_MEMBERS_MAX 4096

/* Hints of an agent for its request: nvext.agent_hints of NVIDIA Dynamo's API. */
struct body_hints {
	bool has_priority;
	int32_t priority; /* Higher goes first; 0 is usual. */
	uint32_t answer;  /* Tokens that the answer is expected to have; 0: not said. */
};

#define BODY_NAMES 2
/* A member, and its key as it is written, without quotes; value.raw.p NULL: there is none. Borrowed. */
struct body_member {
	struct cgn_str key;
	struct json_val value;
};

struct body_facts {
	struct json_val json;     /* The whole body, an object; borrowed. */
	struct json_val model;    /* raw.p NULL: there is none. Borrowed. */
	struct json_val previous; /* previous_response_id; raw.p NULL: there is none. Borrowed. */
	/* cache_salt, and its key as it is written, without quotes; raw.p NULL: there is none. Borrowed. */
	struct json_val salt;
	struct cgn_str salt_key;
	/* stream_options, and its key, in the same way. */
	struct json_val options;
	struct cgn_str options_key;
	struct json_val user; /* metadata.user_id; raw.p NULL: there is none. Borrowed. */
	/* request_id (vLLM) and rid (SGLang), under which an engine keeps a request or its answer. */
	struct body_member names[BODY_NAMES];
	/* The member by which the body names other things that an engine keeps for all callers: "session_params" (SGLang), or
	 * "uuid" of a picture or a sound (vLLM); NULL: there is none. */
	const char *shared;
	bool stream;
	bool stream_odd; /* "stream" is neither a boolean nor null: engines differ in what that means. */
	bool asks_usage; /* stream_options.include_usage is true. */
	bool unstored;   /* "store" is false: the answer is not kept to be continued. */
	bool tools;      /* The body offers tools. */
	bool several;    /* Several answers ("n", "best_of"), or several prompts. */
	uint32_t answer_limit; /* Tokens that the answer may have; 0: the body names no limit. */
	struct body_hints hints;
};

/* Why a body is refused, for an error in OpenAI's shape. */
struct body_fault {
	const char *code, *param; /* Literals; |param| may be NULL. */
	char text[256];
};

/* Read |text|. CGN_INVALID with |*fault|: no JSON object, too many members, or a key that the router reads twice or in
 * another case. Readers of JSON differ in which of two members counts, and some, such as engines written in Go, read
 * "Model" as "model" (by Unicode's simple folding, so two letters beyond ASCII count as well). What the router
 * decided on would not be what the engine does. A hint that is not what it has to be is refused too. A key that only a router may set is refused too, unless its value is
 * null: an engine would connect to the host that the value names. */
CGN_RC body_read(struct cgn_str text, struct body_facts *out, struct body_fault *fault);
/* Return true if the body names no model: the member is not there, null or "". */
bool body_lacks_model(const struct body_facts *facts);
/* Append |text|, which lacks a model and which body_read has read into |facts|, with |name| as its model. */
void body_put_model(struct cgn_str text, const struct body_facts *facts, struct cgn_str name,
	struct cgn_buf *out);
/* Write spaces over the member "cache_salt" of |text|, which body_read has read into |facts|. The places of all other
 * members stay. */
void body_drop_salt(char *text, struct body_facts *facts);
/* The same for |names|. */
void body_drop_names(char *text, struct body_facts *facts);
/* The same for "stream_options". */
void body_drop_options(char *text, struct body_facts *facts);
/* Check the types of "stream", and of what "stream_options" of a stream says about usage. CGN_INVALID with |*fault|, as OpenAI
 * answers: engines differ in what other types mean. Other members are the engine's to judge. */
CGN_RC body_check_options(const struct body_facts *facts, struct body_fault *fault);
/* Return true for a key that only a router may set (body_read). |plain|: without escapes. */
bool body_key_is_reserved(struct cgn_str plain);
/* Return true if |body|, an object that json_parse accepted, makes the engine follow a grammar, by vLLM's, SGLang's and
 * llama.cpp's names, or asks for more than text. A forced tool call is a grammar too. */
bool body_is_constrained(struct json_val body);
