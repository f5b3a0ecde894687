/* SPDX-License-Identifier: Apache-2.0 */
/* fed_batch: a batch whose lines go through the hook, over restarts of the router. */
#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "fed_priv.h"

#define MARK "fed-file-mark"

static char batch_id[96];

static void batch_ask(const char *router, const char *token, const char *method, const char *path,
	const char *kind, struct cgn_str body, struct told *out)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf fields = {0};
	if (token != NULL)
		cgn_buf_fmt(&fields, "Authorization: Bearer %s\r\n", token);
	ask_once(&(struct ask){.host = router,
			 .port = 8080,
			 .method = method,
			 .path = path,
			 .kind = kind,
			 .fields = cgn_buf_z(&fields),
			 .body = body,
			 .patience = 20 * WORLD_SEC},
		out);
}

/* Copy a text member of a JSON document. */
static bool member_copy(struct cgn_str document, const char *key, char *out, size_t room)
{
	struct json_val all, v;
	struct cgn_err err;
	out[0] = '\0';
	return cgn_ok(json_parse(document, &all, NULL, &err)) && json_get(all, key, &v) &&
		v.type == JSON_STRING && cgn_str_copyz(out, room, (struct cgn_str){v.raw.p + 1, v.raw.n - 2});
}

static void file_put(struct cgn_buf *b)
{
	cgn_buf_putz(b,
		"--" MARK "\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--" MARK
		"\r\nContent-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n");
	for (unsigned i = 0; i < fed_n; i++)
		if (fed_requests[i].in_batch) {
			cgn_buf_fmt(b,
				"{\"custom_id\":\"%s\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":",
				fed_requests[i].marker);
			fed_body_put(&fed_requests[i], false, b);
			cgn_buf_putz(b, "}\n");
		}
	cgn_buf_putz(b, "\r\n--" MARK "--\r\n");
}

/* Return true if the router made the batch. */
static bool batch_make(const char *router, const char *token)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf body = {0};
	struct told told;
	char file[96];
	file_put(&body);
	batch_ask(router, token, "POST", "/v1/files", "multipart/form-data; boundary=" MARK,
		cgn_buf_view(&body), &told);
	bool made = told.status == 200 && told.whole &&
		member_copy(cgn_buf_view(&told.body), "id", file, sizeof file);
	world_tell("batch: the file has %d %.*s", told.status, (int)(told.body.n < 200 ? told.body.n : 200),
		told.body.n > 0 ? told.body.p : "");
	told_fini(&told);
	if (!made)
		return false;
	body.n = 0;
	cgn_buf_fmt(&body,
		"{\"input_file_id\":\"%s\",\"endpoint\":\"/v1/chat/completions\",\"completion_window\":\"24h\"}",
		file);
	batch_ask(router, token, "POST", "/v1/batches", NULL, cgn_buf_view(&body), &told);
	made = told.status == 200 && told.whole &&
		member_copy(cgn_buf_view(&told.body), "id", batch_id, sizeof batch_id);
	world_tell("batch: %s has %d", batch_id, told.status);
	told_fini(&told);
	return made;
}

bool fed_batch_begin(const char *router, const char *token, uint64_t patience)
{
	uint64_t until = world_now() + patience;
	while (!batch_make(router, token)) {
		if (world_now() > until)
			return false;
		world_sleep(WORLD_SEC);
	}
	return true;
}

/* ---- the end of the batch ---- */

static void line_check(struct cgn_str line, bool is_output)
{
	struct json_val all, answer, body;
	struct cgn_err err;
	struct told_text text = {0};
	char marker[24];
	struct fed_request *r = member_copy(line, "custom_id", marker, sizeof marker)
		? fed_request_in(cgn_str_of(marker))
		: NULL;
	if (r == NULL || !r->in_batch)
		world_fail("a file of the batch has an unknown line: %.*s", (int)line.n, line.p);
	r->outputs += is_output;
	r->errors += !is_output;
	if (!is_output || !cgn_ok(json_parse(line, &all, NULL, &err)))
		return;
	if (json_get(all, "response", &answer) && json_get(answer, "body", &body))
		told_text_add(body.raw, &text);
	if (text.text.n != r->expected.n || memcmp(text.text.p, r->expected.p, r->expected.n) != 0)
		world_fail("a line of the batch has other bytes than an engine's: %.*s", (int)line.n, line.p);
	cgn_buf_fini(&text.text);
}

static void file_check(const char *router, const char *token, const char *id, bool is_output)
{
	char path[160];
	struct told told;
	if (id[0] == '\0')
		return;
	(void)snprintf(path, sizeof path, "/v1/files/%s/content", id);
	batch_ask(router, token, "GET", path, NULL, (struct cgn_str){0}, &told);
	if (told.status != 200 || !told.whole)
		world_fail("the batch's file %s is answered %d", id, told.status);
	struct cgn_str all = cgn_buf_view(&told.body);
	while (all.n > 0) {
		struct cgn_str line = cgn_str_split(&all, '\n');
		if (line.n > 0)
			line_check(line, is_output);
	}
	told_fini(&told);
}

static void lines_check(void)
{
	for (unsigned i = 0; i < fed_n; i++) {
		const struct fed_request *r = &fed_requests[i];
		if (!r->in_batch)
			continue;
		if (r->outputs + r->errors != 1)
			world_fail("the line %s is in the output %u times, in the errors %u times", r->marker,
				r->outputs, r->errors);
		if (r->outputs > 0 && r->hook.refused > 0 && r->hook.allowed + r->hook.failed == 0)
			world_fail("the hook refused the line %s, and it is in the output", r->marker);
	}
}

void fed_batch_check(const char *router, const char *token, uint64_t patience)
{
	char path[160], status[32] = "", output[96] = "", errors[96] = "";
	uint64_t until = world_now() + patience;
	(void)snprintf(path, sizeof path, "/v1/batches/%s", batch_id);
	while (strcmp(status, "completed") != 0) {
		struct told told;
		batch_ask(router, token, "GET", path, NULL, (struct cgn_str){0}, &told);
		struct cgn_str body = cgn_buf_view(&told.body);
		(void)member_copy(body, "status", status, sizeof status);
		(void)member_copy(body, "output_file_id", output, sizeof output);
		(void)member_copy(body, "error_file_id", errors, sizeof errors);
		if (world_now() > until || strcmp(status, "failed") == 0 || strcmp(status, "expired") == 0)
			world_fail("the batch does not complete: %d %.*s", told.status, (int)body.n,
				body.n > 0 ? body.p : "");
		told_fini(&told);
		world_sleep(WORLD_SEC);
	}
	file_check(router, token, output, true);
	file_check(router, token, errors, false);
	lines_check();
}
