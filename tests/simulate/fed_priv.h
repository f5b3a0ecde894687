/* SPDX-License-Identifier: Apache-2.0 */
/* fed, inside: the requests of the trial of federation, and the fakes that answer beside the clusters. */
#pragma once
#include "ask.h"
#include "certs.h"
#include "fake.h"
#include "hook.h"
#include "token.h"

/* ---- requests ---- */
#define FED_REQUESTS 40
enum fed_who { WHO_GOOD, WHO_NOBODY, WHO_EXPIRED, WHO_UNSIGNED, WHO_FOREIGN, WHO_AUDIENCE, WHO_COUNT };
struct fed_request {
	unsigned n;
	char marker[24];
	bool chat, stream, to_b;
	unsigned tokens;
	enum fed_who who;
	unsigned key; /* Index of the key that signed its token */
	struct told told;
	struct told_text text;
	struct cgn_buf expected; /* The text that an engine gives */
	bool answered, in_batch;
	unsigned outputs, errors; /* Lines of the batch's files that name it */
	bool at_engine, at_api;   /* The prompt was sent there */
	struct hook_book hook;
	unsigned lies; /* The hosted API lied to it */
	int api_way;
};
/* Append the request as a client sends it. */
void fed_body_put(const struct fed_request *r, bool stream, struct cgn_buf *b);
extern struct fed_request fed_requests[FED_REQUESTS];
extern unsigned fed_n;
/* Return the request whose marker is in |text|; NULL: there is none. */
struct fed_request *fed_request_in(struct cgn_str text);

/* ---- fakes ---- */
extern struct fake fed_api, fed_idp;
extern bool fed_calm; /* The fakes make no more mistakes */
extern struct fed_api_book {
	unsigned answers;
	uint64_t most; /* Millionths of the currency that may have been spent: each question at its dearest */
} fed_book;
#define FED_PRICE_IN  2 /* For a million tokens */
#define FED_PRICE_OUT 10
#define FED_KEYS      4
extern struct token_key fed_keys[FED_KEYS], fed_foreign;
extern unsigned fed_keys_from, fed_keys_n; /* The provider publishes the keys from..n-1 */
void fed_token(const struct fed_request *r, const char *issuer, struct cgn_buf *out);

/* ---- batches ---- */
/* Make a batch of the requests that are in one; call on a fiber. |token|: NULL, or the maker's. Return false if the router does
 * not take it in |patience|. */
bool fed_batch_begin(const char *router, const char *token, uint64_t patience);
/* Wait for its end, and check that each line is in one of its files, once. */
void fed_batch_check(const char *router, const char *token, uint64_t patience);
