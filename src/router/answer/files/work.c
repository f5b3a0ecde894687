/* SPDX-License-Identifier: Apache-2.0 */
/* work: the part of a request that waits for the disk. */
#include <stdlib.h>

#include "base/form/form.h"
#include "base/json/json.h"
#include "io/os/loop/loop.h"
#include "policy/config/config.h"
#include "router/answer/batch/batches.h"
#include "router/answer/files/files_priv.h"
#include "router/shared/worker/shared.h"

#define WINDOW_LEAST CGN_SEC
#define WINDOW_MOST  (14 * 24 * 3600 * CGN_SEC)

#define DECODE_BYTES ((size_t)64 * 1024)

/* ---- the body ---- */

typedef cgn_rc (*bytes_take)(struct gw_filing *f, struct cgn_str bytes);

/* Note whether the coded bytes themselves are what failed. */
static CGN_RC coding_note(struct gw_filing *f, cgn_rc rc)
{
	f->damaged = rc.code == CGN_INVALID;
	return rc;
}

static CGN_RC piece_decode(struct gw_filing *f, struct cgn_str in, uint64_t most, bytes_take take)
{
	char room[DECODE_BYTES];
	for (size_t n = sizeof room; n == sizeof room;) {
		CGN_TRY(coding_note(f, coding_read(f->decoder, &in, room, sizeof room, &n, &f->err)));
		f->decoded += n;
		if (f->decoded > most)
			return CGN_FAIL(&f->err, TOO_LARGE, "the decoded body is larger than %llu bytes",
				(unsigned long long)most);
		CGN_TRY(take(f, (struct cgn_str){room, n}));
	}
	return f->last ? coding_note(f, coding_finish(f->decoder, &f->err)) : CGN_OK;
}

/* Give |take| the text of |f->piece|, at most |most| bytes over all pieces, in steps of DECODE_BYTES if it is coded. */
static CGN_RC piece_take(struct gw_filing *f, uint64_t most, bytes_take take)
{
	if (f->coding == CODING_IDENTITY)
		return take(f, cgn_buf_view(&f->piece));
	if (f->decoder == NULL)
		CGN_TRY(coding_open(f->coding, &f->decoder, &f->err));
	return piece_decode(f, cgn_buf_view(&f->piece), most, take);
}

/* ---- files ---- */

static void file_put(struct json_out *j, const struct filestore_file *file)
{
	json_open(j, '{');
	json_key_z(j, "id", file->id);
	json_key_z(j, "object", "file");
	json_key_u64(j, "bytes", file->bytes);
	json_key_u64(j, "created_at", file->created);
	json_key_u64(j, "expires_at", file->expires);
	json_key_z(j, "filename", file->name);
	json_key_z(j, "purpose", file->purpose);
	json_key_z(j, "status", "processed");
	json_close(j, '}');
}

/* Copy a file name of a form: valid UTF-8, cut if it is too long, without a folder. */
static void name_take(char out[FILESTORE_NAME_MAX + 1], struct cgn_str name)
{
	for (size_t i = name.n; i-- > 0;)
		if (name.p[i] == '/' || name.p[i] == '\\') {
			name = (struct cgn_str){name.p + i + 1, name.n - i - 1};
			break;
		}
	if (name.n > FILESTORE_NAME_MAX)
		name.n = FILESTORE_NAME_MAX;
	name.n = cgn_utf8_prefix(name.p, name.n);
	(void)cgn_str_copyz(out, FILESTORE_NAME_MAX + 1, name.n > 0 ? name : CGN_STR("file"));
}

static CGN_RC form_take(struct gw_filing *f, struct cgn_str form, struct filestore_file *out)
{
	struct form_field fields[] = {{.name = "file"}, {.name = "purpose"}};
	CGN_TRY(form_find(form, cgn_str_of(f->boundary), fields, CGN_COUNT(fields), &f->err));
	f->param = "file";
	if (fields[0].times != 1)
		return CGN_FAIL(&f->err, INVALID, "the form needs one field named file");
	if (fields[0].value.n > f->shared->batch_max_file)
		return CGN_FAIL(&f->err, TOO_LARGE, "the file is larger than %llu bytes (batch.max_file)",
			(unsigned long long)f->shared->batch_max_file);
	f->param = "purpose";
	if (fields[1].times != 1 || !cgn_str_is(fields[1].value, "batch"))
		return CGN_FAIL(&f->err, INVALID, "purpose must be \"batch\"");
	f->param = NULL;
	name_take(out->name, fields[0].filename);
	(void)cgn_str_copyz(out->purpose, sizeof out->purpose, CGN_STR("batch"));
	out->offset = (uint64_t)(fields[0].value.p - form.p);
	out->bytes = fields[0].value.n;
	return CGN_OK;
}

static CGN_RC upload_add(struct gw_filing *f, struct cgn_str bytes)
{
	return filestore_add(f->upload, bytes, &f->err);
}

static CGN_RC upload_take(struct gw_filing *f)
{
	struct filestore_file file = {.id = ""};
	struct cgn_str form;
	if (f->upload == NULL)
		CGN_TRY(filestore_begin(f->shared->files, cgn_str_of(f->tenant), NULL, &f->upload, &f->err));
	CGN_TRY(piece_take(f, f->shared->batch_max_file + FILESTORE_FORM_MAX, upload_add));
	if (!f->last)
		return CGN_OK;
	CGN_TRY(filestore_map(f->upload, &form, &f->err));
	CGN_TRY(form_take(f, form, &file));
	CGN_TRY(filestore_commit(&f->upload, &file, &f->err));
	struct json_out j = json_out_to(&f->out);
	file_put(&j, &file);
	return CGN_OK;
}

static CGN_RC upload_work(struct gw_filing *f)
{
	cgn_rc rc = upload_take(f);
	f->kind = QUOTA_FILES;
	if (rc.code == CGN_OVERLOADED)
		f->told = filestore_share(f->shared->files, cgn_str_of(f->tenant));
	return rc;
}

static void list_end(struct json_out *j, const char *first, const char *last, bool more)
{
	json_close(j, ']');
	json_key(j, "first_id");
	if (first[0] != '\0')
		json_put_z(j, first);
	else
		json_put_null(j);
	json_key(j, "last_id");
	if (last[0] != '\0')
		json_put_z(j, last);
	else
		json_put_null(j);
	json_key_bool(j, "has_more", more);
	json_close(j, '}');
}

static CGN_RC files_work(struct gw_filing *f)
{
	struct filestore_file *found = calloc(f->limit + 1, sizeof *found);
	if (found == NULL)
		return CGN_FAIL(&f->err, NO_MEMORY, "out of memory");
	size_t n = filestore_list(f->shared->files, cgn_str_of(f->tenant), cgn_str_of(f->purpose),
		cgn_str_of(f->after), f->oldest_first, found, f->limit + 1);
	size_t told = n < f->limit ? n : f->limit;
	struct json_out j = json_out_to(&f->out);
	json_open(&j, '{');
	json_key_z(&j, "object", "list");
	json_key_open(&j, "data", '[');
	for (size_t i = 0; i < told; i++)
		file_put(&j, &found[i]);
	list_end(&j, told > 0 ? found[0].id : "", told > 0 ? found[told - 1].id : "", n > told);
	free(found);
	return CGN_OK;
}

static CGN_RC file_find(struct gw_filing *f, const char *id, struct filestore_file *out)
{
	if (filestore_find(f->shared->files, cgn_str_of(f->tenant), cgn_str_of(id), out))
		return CGN_OK;
	return CGN_FAIL(&f->err, NOT_FOUND, "there is no file `%s`", id);
}

static CGN_RC file_work(struct gw_filing *f)
{
	struct filestore_file file;
	CGN_TRY(file_find(f, f->id, &file));
	struct json_out j = json_out_to(&f->out);
	file_put(&j, &file);
	return CGN_OK;
}

static CGN_RC delete_work(struct gw_filing *f)
{
	CGN_TRY(filestore_delete(f->shared->files, cgn_str_of(f->tenant), cgn_str_of(f->id), &f->err));
	struct json_out j = json_out_to(&f->out);
	json_open(&j, '{');
	json_key_z(&j, "id", f->id);
	json_key_z(&j, "object", "file");
	json_key_bool(&j, "deleted", true);
	json_close(&j, '}');
	return CGN_OK;
}

/* Read the next piece of the content. */
static CGN_RC content_work(struct gw_filing *f)
{
	if (f->file.id[0] == '\0') {
		CGN_TRY(file_find(f, f->id, &f->file));
		f->left = f->file.bytes;
	}
	uint64_t most = f->file.remote ? FILES_REMOTE_PIECE : FILES_PIECE;
	size_t want = (size_t)(f->left < most ? f->left : most);
	CGN_TRY(filestore_piece(f->shared->files, &f->file, &f->fd, f->at, want, &f->out, &f->err));
	f->at += want;
	f->left -= want;
	return CGN_OK;
}

/* ---- batches ---- */

static CGN_RC window_read(struct gw_filing *f, struct cgn_str text, struct batch *b)
{
	cgn_nsec window = 0;
	f->param = "completion_window";
	if (!cgn_str_copyz(b->window, sizeof b->window, text) || !config_duration(text, &window) ||
		window < WINDOW_LEAST || window > WINDOW_MOST)
		return CGN_FAIL(&f->err, INVALID,
			"completion_window must be a time from \"1s\" to \"336h\", such as \"24h\"");
	f->param = NULL;
	b->times[BATCH_CREATED_AT] = cgn_clock_wall_ms() / 1000;
	b->times[BATCH_EXPIRES_AT] = b->times[BATCH_CREATED_AT] + window / CGN_SEC;
	return CGN_OK;
}

static CGN_RC wish_read(struct gw_filing *f, struct json_val v, struct cgn_arena *a, struct batch *b)
{
	struct filestore_file file;
	struct json_val metadata;
	struct cgn_str input = json_get_str(v, "input_file_id", a), endpoint = json_get_str(v, "endpoint", a);
	f->param = "endpoint";
	if (!gw_route_takes_batch(endpoint) || !cgn_str_copyz(b->endpoint, sizeof b->endpoint, endpoint))
		return CGN_FAIL(&f->err, INVALID,
			"endpoint must be a route with a prompt, such as /v1/chat/completions");
	CGN_TRY(window_read(f, json_get_str(v, "completion_window", a), b));
	f->param = "input_file_id";
	if (!cgn_str_copyz(b->input, sizeof b->input, input) || input.n == 0)
		return CGN_FAIL(&f->err, INVALID, "input_file_id must be the id of a file");
	CGN_TRY(file_find(f, b->input, &file));
	if (strcmp(file.purpose, "batch") != 0)
		return CGN_FAIL(&f->err, INVALID, "the file %s was not uploaded with the purpose batch",
			b->input);
	f->param = "metadata";
	if (json_get(v, "metadata", &metadata) && metadata.type != JSON_NULL) {
		if (!batch_metadata_ok(&metadata))
			return CGN_FAIL(&f->err, INVALID,
				"metadata must be an object of at most 16 texts, keys up to 64 and values up to 512 bytes");
		b->metadata = cgn_str_dupz(metadata.raw);
	}
	f->param = NULL;
	return CGN_OK;
}

static CGN_RC text_add(struct gw_filing *f, struct cgn_str bytes)
{
	cgn_buf_str(&f->text, bytes);
	return f->text.bad ? CGN_FAIL(&f->err, NO_MEMORY, "out of memory") : CGN_OK;
}

/* Add the batch, with places for the files of its results. */
static CGN_RC batch_add(struct gw_filing *f, struct batch *b)
{
	const char *const results[] = {b->output, b->error};
	struct filestore *files = f->shared->files;
	f->kind = QUOTA_FILES;
	CGN_TRY(filestore_reserve(files, cgn_str_of(b->tenant), results, CGN_COUNT(results), &f->told,
		&f->err));
	f->kind = QUOTA_BATCHES;
	cgn_rc rc = batches_add(f->shared->batches, b, &f->told, &f->err);
	for (size_t i = 0; i < CGN_COUNT(results) && !cgn_ok(rc); i++)
		filestore_give(files, results[i]);
	return rc;
}

static CGN_RC create_work(struct gw_filing *f)
{
	struct batch b = {.status = BATCH_VALIDATING, .ending = BATCH_COMPLETED};
	struct json_val v;
	struct cgn_arena a;
	CGN_TRY(piece_take(f, FILING_JSON_MAX, text_add));
	CGN_TRY(json_parse(json_skip_bom(cgn_buf_view(&f->text)), &v, NULL, &f->err));
	filestore_id_make("batch_", b.id);
	filestore_id_make("file-", b.output);
	filestore_id_make("file-", b.error);
	(void)cgn_str_copyz(b.tenant, sizeof b.tenant, cgn_str_of(f->tenant));
	(void)cgn_str_copyz(b.key, sizeof b.key, cgn_str_of(f->key));
	b.by_token = f->holder.n > 0;
	if (b.by_token) {
		b.holder = f->holder.bad ? NULL : cgn_str_dupz(cgn_buf_view(&f->holder));
		if (b.holder == NULL)
			return CGN_FAIL(&f->err, NO_MEMORY, "out of memory");
	}
	cgn_arena_init(&a, FILING_JSON_MAX);
	cgn_rc rc = wish_read(f, v, &a, &b);
	cgn_arena_fini(&a);
	struct json_out j = json_out_to(&f->out);
	if (cgn_ok(rc))
		batch_put(&b, &j);
	if (cgn_ok(rc))
		rc = batch_add(f, &b);
	if (!cgn_ok(rc))
		batch_fini(&b);
	return rc;
}

static CGN_RC batches_work(struct gw_filing *f)
{
	char first[BATCH_ID_MAX], last[BATCH_ID_MAX];
	struct json_out j = json_out_to(&f->out);
	json_open(&j, '{');
	json_key_z(&j, "object", "list");
	json_key_open(&j, "data", '[');
	bool more = batches_list(f->shared->batches, cgn_str_of(f->tenant), cgn_str_of(f->after), f->limit,
		&j, first, last);
	list_end(&j, first, last, more);
	return CGN_OK;
}

static CGN_RC batch_work(struct gw_filing *f)
{
	struct json_out j = json_out_to(&f->out);
	if (f->op == FILING_CANCEL)
		CGN_TRY(batches_cancel(f->shared->batches, cgn_str_of(f->tenant), cgn_str_of(f->id),
			&f->err));
	if (batches_put(f->shared->batches, cgn_str_of(f->tenant), cgn_str_of(f->id), &j))
		return CGN_OK;
	return CGN_FAIL(&f->err, NOT_FOUND, "there is no batch `%s`", f->id);
}

void filing_work(void *filing)
{
	static cgn_rc (*const works[])(struct gw_filing *f) = {
		[FILING_UPLOAD] = upload_work,
		[FILING_FILES] = files_work,
		[FILING_FILE] = file_work,
		[FILING_CONTENT] = content_work,
		[FILING_DELETE] = delete_work,
		[FILING_CREATE] = create_work,
		[FILING_BATCHES] = batches_work,
		[FILING_BATCH] = batch_work,
		[FILING_CANCEL] = batch_work,
	};
	struct gw_filing *f = filing;
	CGN_LIVE(f, FILING_TAG);
	f->rc = works[f->op](f);
}
