/* SPDX-License-Identifier: Apache-2.0 */
/* record: the files that were pulled into a folder, with sizes and checksums, so that the folder can be
 * checked later and a second pull reads nothing again. */
#include <stdio.h>
#include <string.h>

#include <sys/stat.h>

#include "ctl/model/pull_priv.h"
#include "io/os/disk/disk.h"

#define RECORD_MOST ((size_t)64 << 20)

static void record_path(const char *folder, char out[PULL_PATH])
{
	(void)snprintf(out, PULL_PATH, "%s/" PULL_RECORD, folder);
}

CGN_RC pull_record_write(const struct pull *p, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	struct json_out j = json_out_to(&out);
	char path[PULL_PATH];
	record_path(p->to, path);
	json_open(&j, '{');
	json_key_z(&j, "source", p->from);
	if (p->commit[0] != '\0')
		json_key_z(&j, "commit", p->commit);
	json_key_open(&j, "files", '[');
	for (size_t i = 0; i < p->list.n; i++) {
		json_open(&j, '{');
		json_key_z(&j, "path", p->list.files[i].path);
		json_key_u64(&j, "size", p->done[i].size);
		json_key_z(&j, "sha256", p->done[i].sha256);
		json_close(&j, '}');
	}
	json_close(&j, ']');
	json_close(&j, '}');
	cgn_buf_char(&out, '\n');
	if (out.bad)
		return CGN_FAIL(err, NO_MEMORY, "the record of the pull: out of memory");
	return disk_write_file_atomic(path, cgn_buf_view(&out), 0644, err);
}

static CGN_RC record_read(const char *folder, struct cgn_buf *text, struct json_val *files,
	struct cgn_err *err)
{
	char path[PULL_PATH];
	struct json_val all;
	struct cgn_err why;
	record_path(folder, path);
	CGN_TRY(disk_read_file(path, RECORD_MOST, text, err));
	if (!cgn_ok(json_parse(cgn_buf_view(text), &all, NULL, &why)))
		return CGN_FAIL(err, INVALID, "%s: %s", path, why.msg);
	if (!json_get(all, "files", files) || files->type != JSON_ARRAY)
		return CGN_FAIL(err, INVALID, "%s: it has no list \"files\"", path);
	return CGN_OK;
}

void pull_record_find(const struct pull *p, const char *path, uint64_t size, char sha256[65])
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	CGN_ON_EXIT(cgn_arena_fini) struct cgn_arena a;
	struct json_val files, one;
	cgn_arena_init(&a, RECORD_MOST);
	sha256[0] = '\0';
	if (!cgn_ok(record_read(p->to, &text, &files, NULL)))
		return;
	struct json_iter it = json_iter_of(files);
	while (json_next_elem(&it, &one))
		if (cgn_str_is(json_get_str(one, "path", &a), path) &&
			json_get_u64(one, "size", UINT64_MAX) == size)
			(void)cgn_str_copyz(sha256, 65, json_get_str(one, "sha256", &a));
}

static CGN_RC file_check(const char *folder, struct json_val one, struct cgn_arena *a, struct cgn_buf *out,
	bool *right, struct cgn_err *err)
{
	struct cgn_str name = json_get_str(one, "path", a), sha = json_get_str(one, "sha256", a);
	char path[PULL_PATH], got[65] = "";
	uint64_t size = 0;
	if (!modelsource_path_is_safe(name))
		return CGN_FAIL(err, INVALID, "%s/" PULL_RECORD ": it names the file \"%.*s\"", folder,
			(int)(name.n < 200 ? name.n : 200), name.p);
	(void)snprintf(path, sizeof path, "%s/%.*s", folder, CGN_STR_ARG(name));
	cgn_rc rc = pull_hash(path, got, &size, err);
	*right = cgn_ok(rc) && cgn_str_is(sha, got);
	if (!cgn_ok(rc))
		cgn_buf_fmt(out, "%s\n", ctl_shown(err->msg));
	else if (!*right)
		cgn_buf_fmt(out, "%s: sha256:%s, recorded was sha256:%.*s\n", ctl_shown(path), got,
			CGN_STR_ARG(sha));
	return CGN_OK;
}

CGN_RC pull_record_check(const char *folder, struct cgn_buf *out, size_t *files, size_t *wrong,
	struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	CGN_ON_EXIT(cgn_arena_fini) struct cgn_arena a;
	struct json_val list, one;
	cgn_arena_init(&a, RECORD_MOST);
	CGN_TRY(record_read(folder, &text, &list, err));
	struct json_iter it = json_iter_of(list);
	*files = *wrong = 0;
	while (json_next_elem(&it, &one)) {
		bool right = false;
		CGN_TRY(file_check(folder, one, &a, out, &right, err));
		(*files)++;
		*wrong += !right;
	}
	return CGN_OK;
}
