/* SPDX-License-Identifier: Apache-2.0 */
/* batch: makes batches, cancels them, and fetches their results. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ctl/batch/show.h"

#define LINE_MAX_BYTES ((size_t)16 << 20)
#define ID_MAX         96

/* ---- create ---- */

/* Find the endpoint: --endpoint, else the url of the file's first line that is not blank. */
static CGN_RC endpoint_find(const struct ctl_args *a, const char *file, char out[ID_MAX], struct cgn_err *err)
{
	const char *given = ctl_flag(a, "--endpoint");
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf line = {.limit = LINE_MAX_BYTES};
	struct json_val v;
	out[0] = '\0';
	if (given != NULL)
		return cgn_str_copyz(out, ID_MAX, cgn_str_of(given))
			? CGN_OK
			: CGN_FAIL(err, INVALID, "--endpoint has more than %d bytes", ID_MAX - 1);
	FILE *f = fopen(file, "re");
	if (f == NULL)
		return CGN_FAIL_AS(err, errno == ENOENT ? CGN_NOT_FOUND : CGN_STORAGE, "cannot open %s: %s",
			file, strerror(errno));
	for (int c = getc(f); c != EOF && !(c == '\n' && line.n > 0) && !line.bad; c = getc(f))
		if (line.n > 0 || (c != ' ' && c != '\t' && c != '\r' && c != '\n'))
			cgn_buf_char(&line, (char)c);
	(void)fclose(f);
	if (!line.bad && cgn_ok(json_parse(cgn_buf_view(&line), &v, NULL, NULL)))
		batch_member(v, "url", out, ID_MAX);
	return out[0] != '\0'
		? CGN_OK
		: CGN_FAIL(err, INVALID,
			  "the first line of %s is not a request with a \"url\": each line is {\"custom_id\", \"method\", \"url\", \"body\"}",
			  file);
}

/* --metadata KEY=VALUE */
static CGN_RC metadata_put(const struct ctl_args *a, struct json_out *j, struct cgn_err *err)
{
	const char *pair;
	if (ctl_flag_nth(a, "--metadata", 0) == NULL)
		return CGN_OK;
	json_key_open(j, "metadata", '{');
	for (size_t i = 0; (pair = ctl_flag_nth(a, "--metadata", i)) != NULL; i++) {
		struct cgn_str value = cgn_str_of(pair), key = cgn_str_split(&value, '=');
		char name[65];
		if (value.p == NULL || key.n == 0 || !cgn_str_copyz(name, sizeof name, key))
			return CGN_FAIL(err, INVALID,
				"--metadata takes KEY=VALUE with a key of 1 to 64 bytes, not '%.100s'", pair);
		json_key_str(j, name, value);
	}
	json_close(j, '}');
	return CGN_OK;
}

/* Make the batch of the uploaded file |input|. */
static CGN_RC batch_make(const struct ctl_args *a, struct ctl_gateway *g, const char *input,
	const char *endpoint, struct cgn_buf *out, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf body = {0};
	struct json_out j = json_out_to(&body);
	json_open(&j, '{');
	json_key_z(&j, "input_file_id", input);
	json_key_z(&j, "endpoint", endpoint);
	json_key_z(&j, "completion_window", ctl_flag(a, "--window"));
	CGN_TRY(metadata_put(a, &j, err));
	json_close(&j, '}');
	if (body.bad)
		return CGN_FAIL(err, NO_MEMORY, "out of memory");
	return ctl_gateway_ask(g, "POST", "/v1/batches", cgn_buf_view(&body), out, err);
}

/* Delete the uploaded file of a batch that was refused, so that nothing is left. */
static void upload_delete(struct ctl_gateway *g, const char *input)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	char path[ID_MAX + 32];
	struct cgn_err err;
	(void)snprintf(path, sizeof path, "/v1/files/%s", input);
	if (!cgn_ok(ctl_gateway_ask(g, "DELETE", path, (struct cgn_str){NULL, 0}, &out, &err)))
		(void)fprintf(stderr, "cgn-ctl: the uploaded file %s stays: %s\n", ctl_shown(input),
			ctl_shown(err.msg));
}

static CGN_RC id_of(struct cgn_buf *answer, struct json_val *v, char id[ID_MAX], struct cgn_err *err)
{
	id[0] = '\0';
	if (cgn_ok(json_parse(cgn_buf_view(answer), v, NULL, NULL)))
		batch_member(*v, "id", id, ID_MAX);
	return id[0] != '\0' ? CGN_OK : CGN_FAIL(err, BAD_GATEWAY, "the gateway's answer has no id");
}

CGN_RC ctl_batch_create(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(ctl_gateway_close) struct ctl_gateway *g = NULL;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf file = {0}, made = {0};
	char endpoint[ID_MAX], input[ID_MAX], id[ID_MAX];
	struct json_val v = {.raw = {NULL, 0}};
	CGN_TRY(endpoint_find(a, a->words[0], endpoint, err));
	CGN_TRY(ctl_gateway_open(a, &g, err));
	CGN_TRY(ctl_gateway_upload(g, a->words[0], &file, err));
	CGN_TRY(id_of(&file, &v, input, err));
	cgn_rc rc = batch_make(a, g, input, endpoint, &made, err);
	if (!cgn_ok(rc)) {
		upload_delete(g, input);
		return rc;
	}
	CGN_TRY(id_of(&made, &v, id, err));
	if (ctl_switch(a, "--watch"))
		return batch_wait(a, g, id, err);
	return batch_print(a, v, &made, err);
}

/* ---- cancel ---- */

CGN_RC ctl_batch_cancel(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(ctl_gateway_close) struct ctl_gateway *g = NULL;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0}, answer = {0};
	struct json_val b = {.raw = {NULL, 0}};
	char path[ID_MAX + 64];
	CGN_TRY(ctl_gateway_open(a, &g, err));
	CGN_TRY(batch_fetch(g, a->words[0], &text, &b, err)); /* The id is checked there. */
	(void)snprintf(path, sizeof path, "/v1/batches/%.90s/cancel", a->words[0]);
	CGN_TRY(ctl_gateway_ask(g, "POST", path, CGN_STR("{}"), &answer, err));
	CGN_TRY(json_parse(cgn_buf_view(&answer), &b, NULL, err));
	return batch_print(a, b, &answer, err);
}

/* ---- results ---- */

/* Say why there is no such file. */
static CGN_RC results_missing(struct json_val b, bool errors, struct cgn_err *err)
{
	char id[ID_MAX], status[32], other[ID_MAX];
	batch_member(b, "id", id, sizeof id);
	batch_member(b, "status", status, sizeof status);
	batch_member(b, errors ? "output_file_id" : "error_file_id", other, sizeof other);
	if (other[0] != '\0')
		return CGN_FAIL(err, NOT_FOUND, "the batch %s (%s) has no %s", id, status,
			errors ? "lines that failed" : "answers; all its lines failed: see --errors");
	return CGN_FAIL(err, NOT_FOUND,
		"the batch %s is %s and has no results%s; cgn-ctl batch show %s says more", id, status,
		strcmp(status, "failed") == 0 ? "" : " yet", id);
}

/* Save into FILE.part, which becomes |file| when it is whole. */
static CGN_RC results_save(struct ctl_gateway *g, const char *path, const char *file, struct cgn_err *err)
{
	char part[4096];
	if (snprintf(part, sizeof part, "%s.part", file) >= (int)sizeof part)
		return CGN_FAIL(err, INVALID, "the name of --out is too long");
	int fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (fd < 0)
		return CGN_FAIL(err, STORAGE, "cannot make %s: %s", part, strerror(errno));
	cgn_rc rc = ctl_gateway_save(g, path, fd, err);
	if (close(fd) != 0 && cgn_ok(rc))
		rc = CGN_FAIL(err, STORAGE, "cannot write %s: %s", part, strerror(errno));
	if (cgn_ok(rc) && rename(part, file) != 0)
		rc = CGN_FAIL(err, STORAGE, "cannot write %s: %s", file, strerror(errno));
	if (!cgn_ok(rc))
		(void)unlink(part);
	return rc;
}

CGN_RC ctl_batch_results(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(ctl_gateway_close) struct ctl_gateway *g = NULL;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct json_val b = {.raw = {NULL, 0}};
	char id[ID_MAX], path[ID_MAX + 32];
	bool errors = ctl_switch(a, "--errors");
	CGN_TRY(ctl_gateway_open(a, &g, err));
	CGN_TRY(batch_fetch(g, a->words[0], &text, &b, err));
	batch_member(b, errors ? "error_file_id" : "output_file_id", id, sizeof id);
	if (id[0] == '\0')
		return results_missing(b, errors, err);
	(void)snprintf(path, sizeof path, "/v1/files/%s/content", id);
	if (ctl_flag(a, "--out") != NULL)
		return results_save(g, path, ctl_flag(a, "--out"), err);
	return ctl_gateway_save(g, path, STDOUT_FILENO, err);
}
