/* SPDX-License-Identifier: Apache-2.0 */
/* arena: the memory itself, one memfd that is mapped here for writing and sealed against writing by
 * others. */
#include "io/os/pages/pages_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/mman.h>

#ifndef MFD_NOEXEC_SEAL /* Since Linux 6.3. */
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef MADV_POPULATE_WRITE /* Since Linux 5.14. */
#define MADV_POPULATE_WRITE 23
#endif

static CGN_RC mapping_refused(struct cgn_err *err, const char *what, uint64_t bytes)
{
	int e = errno;
	(void)CGN_FAIL(err, NO_MEMORY, "cannot %s %llu bytes of memory for values: %s", what,
		(unsigned long long)bytes, strerror(e));
	if (err != NULL)
		err->sys_errno = e;
	return CGN_RC_OF(CGN_NO_MEMORY);
}

static int make_memfd(void)
{
	int fd = memfd_create("cgn-pages", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
	return fd >= 0 || errno != EINVAL ? fd : memfd_create("cgn-pages", MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

/* Seal the memory: our mapping exists and stays writable, later ones are read-only. The descriptor is
 * reopened read-only, so that write(2) through it fails even where a kernel lacks the seal. */
static int memory_seal(int fd)
{
	char path[32];
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE) != 0 ||
		fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL) != 0)
		return -1;
	(void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	return open(path, O_RDONLY | O_CLOEXEC);
}

static CGN_RC memory_map(struct pages *p, struct cgn_err *err)
{
	uint64_t bytes = p->n * PAGES_PAGE;
	p->fd = make_memfd();
	if (p->fd < 0 || ftruncate(p->fd, (off_t)bytes) != 0)
		return mapping_refused(err, "make", bytes);
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, p->fd, 0);
	if (memory == MAP_FAILED)
		return mapping_refused(err, "map", bytes);
	p->memory = memory;
	/* Takes effect as far as the system's shmem_enabled allows. */
	(void)madvise(memory, bytes, MADV_HUGEPAGE);
	/* A core file would otherwise be as large as the tier and contain prompts. */
	(void)madvise(memory, bytes, MADV_DONTDUMP);
	/* Zeroed on first use; the row of an unused page takes no memory. */
	void *table = mmap(NULL, p->n * sizeof *p->table, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (table == MAP_FAILED)
		return mapping_refused(err, "keep account of", bytes);
	p->table = table;
	p->reader_fd = memory_seal(p->fd);
	return CGN_OK;
}

CGN_RC pages_new(uint64_t bytes, struct pages **out, struct cgn_err *err)
{
	uint64_t n = bytes / PAGES_PAGE;
	if (n == 0 || n >= PAGES_NONE)
		return CGN_FAIL(err, INVALID,
			"memory for values of %llu bytes: at least %llu, less than 256 TiB",
			(unsigned long long)bytes, (unsigned long long)PAGES_PAGE);
	struct pages *p = CGN_NEW(struct pages);
	*p = (struct pages){.tag = PAGES_TAG, .fd = -1, .reader_fd = -1, .n = (uint32_t)n};
	for (size_t i = 0; i < PAGES_BINS; i++)
		p->bins[i] = PAGES_NONE;
	for (size_t i = 0; i < PAGES_CLASSES; i++)
		p->partial[i] = PAGES_NONE;
	cgn_rc rc = memory_map(p, err);
	if (!cgn_ok(rc)) {
		pages_free(&p);
		return rc;
	}
	run_in(p, 0, n);
	*out = p;
	return CGN_OK;
}

void pages_free(struct pages **take)
{
	struct pages *p = CGN_TAKE_LIVE(take, PAGES_TAG);
	if (p == NULL)
		return;
	if (p->table != NULL)
		(void)munmap(p->table, p->n * sizeof *p->table);
	if (p->memory != NULL)
		(void)munmap(p->memory, p->n * PAGES_PAGE);
	if (p->reader_fd >= 0)
		(void)close(p->reader_fd);
	if (p->fd >= 0)
		(void)close(p->fd);
	p->tag = 0;
	free(p);
}

/* Populate the memory from byte |from| to |to|, both at the beginning of a page. */
static bool memory_populate(struct pages *p, uint64_t from, uint64_t to)
{
	/* EINVAL: before Linux 5.14; the memory is provided on first write there. */
	if (madvise(p->memory + from, to - from, MADV_POPULATE_WRITE) != 0 && errno != EINVAL)
		return false;
	for (uint64_t i = from / PAGES_PAGE; i < to / PAGES_PAGE; i++)
		if (!atomic_exchange_explicit(&p->table[i].ready, true, memory_order_relaxed))
			atomic_fetch_add_explicit(&p->n_ready, 1, memory_order_relaxed);
	return true;
}

bool pages_ready(struct pages *p, uint64_t size, const struct pages_place *at)
{
	struct pages_walk w = {0};
	uint64_t offset = 0, length = 0;
	CGN_LIVE(p, PAGES_TAG);
	while (pages_next(at, size, &w, &offset, &length)) {
		uint64_t from = offset / PAGES_PAGE * PAGES_PAGE, to = offset + length;
		to = (to + PAGES_PAGE - 1) / PAGES_PAGE * PAGES_PAGE;
		if (!memory_populate(p, from, to))
			return false;
	}
	return true;
}

char *pages_at(const struct pages *p, uint64_t offset)
{
	return p->memory + offset;
}

uint64_t pages_bytes(const struct pages *p)
{
	return p->n * PAGES_PAGE;
}

int pages_fd(const struct pages *p)
{
	CGN_LIVE(p, PAGES_TAG);
	return p->reader_fd;
}
