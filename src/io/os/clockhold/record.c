/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/core/str.h"
#include "io/os/clockhold/clockhold_priv.h"

static void uuid_drop(struct record *r, size_t at)
{
	r->n--;
	memmove(r->uuid[at], r->uuid[r->n], sizeof r->uuid[at]);
}

static size_t uuid_find(const struct record *r, const char *uuid)
{
	size_t i = 0;
	while (i < r->n && strcmp(r->uuid[i], uuid) != 0)
		i++;
	return i;
}

static void line_take(struct record *r, struct cgn_str line)
{
	char uuid[sizeof r->uuid[0]];
	if (line.n < 2 || !cgn_str_copyz(uuid, sizeof uuid, (struct cgn_str){line.p + 1, line.n - 1}))
		return;
	size_t at = uuid_find(r, uuid);
	if (line.p[0] == '-' && at < r->n)
		uuid_drop(r, at);
	else if (line.p[0] == '+' && at == r->n && r->n < NVML_MAX_GPUS)
		memcpy(r->uuid[r->n++], uuid, sizeof uuid);
}

static void lines_take(struct record *r, const char *text, size_t n)
{
	size_t from = 0;
	for (size_t i = 0; i < n; i++)
		if (text[i] == '\n') {
			line_take(r, (struct cgn_str){text + from, i - from});
			from = i + 1;
		}
}

static cgn_rc record_read(struct record *r, const char *path, struct cgn_err *err)
{
	char *text = CGN_NEW_ARRAY(char, RECORD_MAX_BYTES);
	ssize_t n = pread(r->fd, text, RECORD_MAX_BYTES, 0);
	if (n >= 0)
		lines_take(r, text, (size_t)n);
	r->bytes = n > 0 ? (size_t)n : 0;
	free(text);
	return n >= 0 ? CGN_OK : CGN_FAIL(err, STORAGE, "cannot read %s: %s", path, strerror(errno));
}

CGN_RC record_open(struct record *r, const char *path, void (*waiting)(void *user), void *user,
	struct cgn_err *err)
{
	*r = (struct record){.fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_APPEND, 0640)};
	if (r->fd < 0)
		return CGN_FAIL(err, STORAGE, "cannot open %s: %s", path, strerror(errno));
	int rc = flock(r->fd, LOCK_EX | LOCK_NB);
	if (rc != 0 && errno == EWOULDBLOCK) {
		waiting(user);
		while ((rc = flock(r->fd, LOCK_EX)) != 0 && errno == EINTR)
			;
	}
	if (rc != 0)
		return CGN_FAIL(err, STORAGE, "cannot lock %s: %s", path, strerror(errno));
	CGN_TRY(record_read(r, path, err));
	/* A cut line would swallow the next one. */
	if (r->n == 0 && ftruncate(r->fd, 0) == 0)
		r->bytes = 0;
	else if (write(r->fd, "\n", 1) == 1)
		r->bytes++;
	return CGN_OK;
}

static bool line_write(struct record *r, char sign, const char *uuid)
{
	char line[sizeof r->uuid[0] + 2];
	int n = snprintf(line, sizeof line, "%c%s\n", sign, uuid);
	if (n <= 0 || r->bytes + (size_t)n > RECORD_MAX_BYTES) {
		errno = EFBIG;
		return false;
	}
	if (write(r->fd, line, (size_t)n) != n)
		return false;
	r->bytes += (size_t)n;
	return fdatasync(r->fd) == 0;
}

bool record_has(const struct record *r, const char *uuid)
{
	return uuid_find(r, uuid) < r->n;
}

CGN_RC record_add(struct record *r, const char *uuid, struct cgn_err *err)
{
	if (record_has(r, uuid))
		return CGN_OK;
	if (r->n == NVML_MAX_GPUS || !line_write(r, '+', uuid))
		return CGN_FAIL(err, STORAGE,
			"cannot note the limit in the state folder: %s; it is not set without that",
			strerror(errno));
	(void)cgn_str_copyz(r->uuid[r->n++], sizeof r->uuid[0], cgn_str_of(uuid));
	return CGN_OK;
}

void record_remove(struct record *r, const char *uuid)
{
	size_t at = uuid_find(r, uuid);
	if (at == r->n)
		return;
	uuid_drop(r, at);
	if (r->n == 0 && ftruncate(r->fd, 0) == 0)
		r->bytes = 0;
	else
		(void)line_write(r, '-', uuid);
	(void)fdatasync(r->fd);
}

bool clockhold_recorded(const char *record)
{
	struct stat st;
	return stat(record, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0;
}
