/* SPDX-License-Identifier: Apache-2.0 */
/* fed_fakes: a hosted API, a hook and an identity provider that are right, wrong, slow or gone. */
#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "fed_priv.h"

#define USAGE_LIE      UINT64_C(1000000000000) /* Tokens; readers refuse the number */
#define USAGE_BELIEVED UINT64_C(200000000)     /* Below their bound */

bool fed_calm;
struct fed_api_book fed_book;
struct token_key fed_keys[FED_KEYS], fed_foreign;
unsigned fed_keys_from, fed_keys_n;

static bool json_reply(struct fake_talk *t, int status, const char *text)
{
	return fake_reply(t, status, "application/json", cgn_str_of(text));
}

/* ---- the hosted API ---- */

enum api_way {
	API_RIGHT,
	API_USAGE,
	API_ERROR_IN_200,
	API_HTML,
	API_EMPTY_STREAM,
	API_500,
	API_429,
	API_CUT_HEAD,
	API_CUT_BODY,
	API_STALL,
	API_NO_CHOICES,
	API_DONE_ONLY,
	API_ERROR_EVENT,
	API_GARBAGE,
	API_204,
	API_WAYS
};

static void book_add(struct fed_request *r, uint64_t in, uint64_t out, bool whole)
{
	uint64_t cost = in * FED_PRICE_IN + out * FED_PRICE_OUT; /* Millionths, as prices are for a million */
	fed_book.most += cost;
	fed_book.answers++;
	if (whole)
		r->api_way = API_RIGHT;
}

static void usage_put(struct json_out *o, uint64_t in, uint64_t out)
{
	json_key_open(o, "usage", '{');
	json_key_u64(o, "prompt_tokens", in);
	json_key_u64(o, "completion_tokens", out);
	json_key_u64(o, "total_tokens", in + out);
	json_close(o, '}');
}

static void choice_put(struct json_out *o, const struct fed_request *r, struct cgn_str text, const char *end)
{
	json_key_open(o, "choices", '[');
	json_open(o, '{');
	json_key_u64(o, "index", 0);
	if (r->chat) {
		json_key_open(o, r->stream ? "delta" : "message", '{');
		json_key_z(o, "role", "assistant");
		json_key_str(o, "content", text);
		json_close(o, '}');
	} else {
		json_key_str(o, "text", text);
	}
	if (end != NULL)
		json_key_z(o, "finish_reason", end);
	json_close(o, '}');
	json_close(o, ']');
}

static bool event_send(struct fake_talk *t, const struct fed_request *r, struct cgn_str text, const char *end,
	uint64_t usage)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	struct json_out o = json_out_to(&b);
	cgn_buf_putz(&b, "data: ");
	json_open(&o, '{');
	json_key_z(&o, "id", "far");
	json_key_z(&o, "object", r->chat ? "chat.completion.chunk" : "text_completion");
	json_key_z(&o, "model", "m");
	choice_put(&o, r, text, end);
	if (usage > 0)
		usage_put(&o, 10, usage);
	json_close(&o, '}');
	cgn_buf_putz(&b, "\n\n");
	return fake_send(t, b.p, b.n);
}

static bool stream_serve(struct fake_talk *t, struct fed_request *r, enum api_way way, uint64_t usage)
{
	struct cgn_str rest = cgn_buf_view(&r->expected);
	if (!fake_stream(t, 200, "text/event-stream") || way == API_EMPTY_STREAM || way == API_CUT_HEAD)
		return false;
	while (rest.n > 0 && way != API_DONE_ONLY) {
		size_t n = 1 + world_draw(24);
		n = n < rest.n ? n : rest.n;
		while (n < rest.n && (rest.p[n] & 0xc0) == 0x80) /* Not within a character */
			n++;
		if (way == API_CUT_BODY && world_chance(4))
			return false;
		if (way == API_ERROR_EVENT && world_chance(4)) {
			static const char e[] =
				"data: {\"error\":{\"message\":\"no\",\"type\":\"server_error\",\"code\":500}}\n\n";
			(void)fake_send(t, e, sizeof e - 1);
			return false;
		}
		if (!event_send(t, r, (struct cgn_str){rest.p, n}, n == rest.n ? "length" : NULL,
			    n == rest.n ? usage : 0))
			return false;
		rest = (struct cgn_str){rest.p + n, rest.n - n};
		world_sleep(world_draw(40 * WORLD_MS));
	}
	static const char done[] = "data: [DONE]\n\n";
	(void)fake_send(t, done, sizeof done - 1);
	return false;
}

static bool document_serve(struct fake_talk *t, struct fed_request *r, enum api_way way, uint64_t usage)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	struct json_out o = json_out_to(&b);
	json_open(&o, '{');
	json_key_z(&o, "id", "far");
	json_key_z(&o, "object", r->chat ? "chat.completion" : "text_completion");
	json_key_z(&o, "model", "m");
	if (way == API_NO_CHOICES) {
		json_key_open(&o, "choices", '[');
		json_close(&o, ']');
	} else {
		choice_put(&o, r, cgn_buf_view(&r->expected), "length");
	}
	usage_put(&o, 10, usage);
	json_close(&o, '}');
	if (way == API_CUT_BODY) {
		(void)fake_stream(t, 200, "application/json\r\nContent-Length: 100000");
		(void)fake_send(t, b.p, b.n / 2);
		return false;
	}
	return fake_reply(t, 200, "application/json", cgn_buf_view(&b));
}

static bool api_lie(struct fake_talk *t, struct fed_request *r, enum api_way way)
{
	static const char garbage[] = "HTP/9 what\r\n\r\n\r\n";
	switch ((int)way) {
	case API_ERROR_IN_200:
		return json_reply(t, 200,
			"{\"error\":{\"message\":\"overloaded\",\"type\":\"server_error\",\"code\":\"x\"}}");
	case API_HTML:
		return fake_reply(t, 200, "text/html", CGN_STR("<html><body>Please sign in</body></html>"));
	case API_500:
		return json_reply(t, 500, "{\"error\":{\"message\":\"no\"}}");
	case API_429:
		return json_reply(t, 429, "{\"error\":{\"message\":\"slow down\"}}");
	case API_GARBAGE:
		(void)fake_send(t, garbage, sizeof garbage - 1);
		return false;
	case API_204:
		return fake_reply(t, 204, "application/json", (struct cgn_str){0});
	case API_STALL:
		world_sleep(60 * WORLD_SEC);
		return false;
	default:
		return r->stream ? stream_serve(t, r, way, r->tokens) : document_serve(t, r, way, r->tokens);
	}
}

static bool api_serve(struct fake_talk *t, const struct fake_question *q, void *user)
{
	(void)user;
	struct fed_request *r = fed_request_in(q->body);
	if (r == NULL)
		return json_reply(t, 404, "{\"error\":{\"message\":\"who?\"}}");
	enum api_way way = fed_calm || world_chance(2) ? API_RIGHT : (enum api_way)world_draw(API_WAYS);
	r->at_api = true;
	r->api_way = (int)way;
	r->lies += way != API_RIGHT;
	world_tell("api: %s, way %d", r->marker, (int)way);
	world_sleep(world_draw(300 * WORLD_MS));
	if (way == API_USAGE) {
		book_add(r, 40 + q->body.n, 2 * (r->tokens + r->expected.n) + 64, false);
		uint64_t lie = world_chance(2) ? USAGE_LIE : USAGE_BELIEVED;
		return r->stream ? stream_serve(t, r, way, lie) : document_serve(t, r, way, lie);
	}
	book_add(r, 40 + q->body.n, r->tokens + 8, way == API_RIGHT);
	return way == API_RIGHT
		? (r->stream ? stream_serve(t, r, way, r->tokens) : document_serve(t, r, way, r->tokens))
		: api_lie(t, r, way);
}

/* ---- the identity provider ---- */

static bool idp_keys(struct fake_talk *t)
{
	const struct token_key *keys[FED_KEYS];
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	size_t n = 0;
	for (unsigned i = fed_keys_from; i < fed_keys_n; i++)
		keys[n++] = &fed_keys[i];
	token_keys_put(keys, n, &b);
	return fake_reply(t, 200, "application/json", cgn_buf_view(&b));
}

static bool idp_serve(struct fake_talk *t, const struct fake_question *q, void *issuer)
{
	char text[512];
	unsigned way = fed_calm || world_draw(3) > 0 ? 0 : (unsigned)(1 + world_draw(5));
	world_tell("idp: %s, way %u", q->path, way);
	switch (way) {
	case 1:
		return json_reply(t, 500, "{}");
	case 2:
		world_sleep(30 * WORLD_SEC);
		return false;
	case 3:
		return false;
	case 4:
		return fake_reply(t, 200, "application/json", CGN_STR("\x01<html>"));
	case 5:
		return json_reply(t, 200,
			"{\"keys\":[],\"issuer\":\"https://other\",\"jwks_uri\":\"https://other/keys\"}");
	default:
		break;
	}
	if (strcmp(q->path, "/keys") == 0)
		return idp_keys(t);
	(void)snprintf(text, sizeof text,
		"{\"issuer\":\"%s\",\"jwks_uri\":\"%s/keys\",\"authorization_endpoint\":\"%s/authorize\","
		"\"token_endpoint\":\"%s/token\"}",
		(const char *)issuer, (const char *)issuer, (const char *)issuer, (const char *)issuer);
	return json_reply(t, 200, text);
}

void fed_token(const struct fed_request *r, const char *issuer, struct cgn_buf *out)
{
	char claims[512];
	int64_t now = certs_now();
	int64_t end = r->who == WHO_EXPIRED ? now - 3600 : now + 3600;
	(void)snprintf(claims, sizeof claims,
		"{\"iss\":\"%s\",\"aud\":\"%s\",\"sub\":\"ann\",\"iat\":%lld,\"exp\":%lld}", issuer,
		r->who == WHO_AUDIENCE ? "others" : "cognitora", (long long)now - 7200, (long long)end);
	token_put(r->who == WHO_FOREIGN ? &fed_foreign : &fed_keys[r->key], claims, r->who != WHO_UNSIGNED,
		out);
}

struct fake fed_api = {.name = "api",
		    .port = 8443,
		    .cert = "/pki/api.pem",
		    .key = "/pki/api.key",
		    .serve = api_serve},
	    fed_idp = {.name = "idp",
		    .port = 8700,
		    .cert = "/pki/idp.pem",
		    .key = "/pki/idp.key",
		    .serve = idp_serve};
