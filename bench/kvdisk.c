/* SPDX-License-Identifier: Apache-2.0 */
/* bench kvdisk FOLDER [ENTRIES]: the SSD tier on the disk of FOLDER, which must be empty or absent, and is
 * emptied afterwards. Prints one JSON object.
 *
 * Reads: the same values lie in a store and in plain files of the same sizes; before each read the file's
 * pages are dropped from the page cache, and the two take turns. A plain file is opened, read whole and
 * closed, and not checked; a value is compared with its checksum. Ways: one file of records, like a slab
 * file, read at random by one, four and eight threads: through the page cache, through the page cache with
 * the read pages dropped again, and past it (O_DIRECT). The ways take turns, with an empty page cache at
 * first; the share of the file in the page cache at the end is printed. Writes: the bytes that the kernel
 * sent to the disk (/proc/self/io) against the bytes that were put, in a store with room and in a full one.
 * Boot: a store with ENTRIES values (1,000,000) is opened; its memory afterwards is printed. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/json/json.h"
#include "base/log/log.h"
#include "base/mix/mix.h"
#include "base/samples/samples.h"
#include "io/os/loop/loop.h"
#include "joint/kv/kvdisk/kvdisk.h"
#include "joint/kv/kvstore/kvstore.h"

#define KIB   ((uint64_t)1 << 10)
#define MIB   ((uint64_t)1 << 20)
#define READS 600

static char folder[200];
static uint8_t *buffer;

static void bench_die(const char *what)
{
	fprintf(stderr, "bench_kvdisk: %s: %s\n", what, strerror(errno));
	exit(1);
}

static int remove_path(const char *path, const struct stat *st, int type, struct FTW *at)
{
	(void)st;
	(void)type;
	(void)at;
	return remove(path);
}

static const char *path_in(const char *name)
{
	static char path[4][300];
	static unsigned n;
	char *p = path[n++ % 4];
	(void)snprintf(p, sizeof path[0], "%s/%s", folder, name);
	return p;
}

static void folder_empty(const char *name)
{
	(void)nftw(path_in(name), remove_path, 16, FTW_DEPTH | FTW_PHYS);
}

static struct kvdisk *open_disk(const char *name, uint64_t budget, uint32_t small_bytes)
{
	const struct kvdisk_cfg cfg = {.dir = path_in(name), .budget = budget, .small_bytes = small_bytes};
	struct kvdisk_opening how;
	struct cgn_err err = {0};
	struct kvdisk *d = NULL;
	if (!cgn_ok(kvdisk_open(&cfg, &d, &how, &err))) {
		fprintf(stderr, "bench_kvdisk: %s\n", err.msg);
		exit(1);
	}
	return d;
}

static struct block_key key_of(uint64_t i)
{
	return (struct block_key){.digest = digest_of((struct cgn_str){(const char *)&i, sizeof i})};
}

static void value_fill(uint8_t *p, size_t n, uint64_t seed)
{
	uint64_t x = seed * MIX_GOLDEN + 1;
	for (size_t i = 0; i + 8 <= n; i += 8) {
		(void)mix_xorshift(&x);
		memcpy(p + i, &x, 8);
	}
}

static kvdisk_place value_put(struct kvdisk *d, uint64_t i, size_t n)
{
	struct block_key k = key_of(i);
	struct block_meta meta = {.model = CGN_STR("bench")};
	struct iovec iov = {buffer, n};
	struct cgn_err err = {0};
	kvdisk_place at = 0;
	memcpy(buffer, &i, sizeof i < n ? sizeof i : n);
	if (!cgn_ok(kvdisk_put(d, &k, &meta, XXH3_64bits(buffer, n), &iov, 1, &at, &err))) {
		fprintf(stderr, "bench_kvdisk: %s\n", err.msg);
		exit(1);
	}
	return at;
}

/* ---- the page cache of synced files ---- */
static void drop_file(const char *path)
{
	int fd = open(path, O_RDONLY);
	if (fd < 0 && errno == ENOENT) /* RocksDB has removed the file. */
		return;
	if (fd < 0)
		bench_die(path);
	if (posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0)
		bench_die(path);
	close(fd);
}

static void drop_all(const char *name)
{
	DIR *d = opendir(path_in(name));
	if (d == NULL)
		bench_die(name);
	for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
		char path[600];
		(void)snprintf(path, sizeof path, "%s/%s", path_in(name), e->d_name);
		if (e->d_type == DT_REG)
			drop_file(path);
	}
	closedir(d);
}

/* ---- reads ---- */
static void put_times(struct json_out *o, const char *name, struct samples *times)
{
	json_key(o, name);
	json_open(o, '{');
	json_key_f64(o, "p50_us", samples_ms(times, 0.5) * 1000);
	json_key_f64(o, "p99_us", samples_ms(times, 0.99) * 1000);
	json_close(o, '}');
	samples_fini(times);
}

static void plain_name(char out[32], uint64_t i)
{
	(void)snprintf(out, 32, "plain-%llu", (unsigned long long)i);
}

static void write_plain(uint64_t i, size_t n)
{
	char name[32];
	plain_name(name, i);
	int fd = open(path_in(name), O_WRONLY | O_CREAT | O_TRUNC, 0600);
	if (fd < 0 || write(fd, buffer, n) != (ssize_t)n || fdatasync(fd) != 0)
		bench_die(name);
	close(fd);
}

static uint64_t read_plain(uint64_t i, size_t n)
{
	char name[32];
	plain_name(name, i);
	const char *path = path_in(name);
	drop_file(path);
	cgn_nsec began = cgn_clock_now();
	int fd = open(path, O_RDONLY);
	if (fd < 0)
		bench_die(path);
	for (size_t at = 0; at < n;) {
		ssize_t got = pread(fd, buffer + at, n - at, (off_t)at);
		if (got <= 0)
			bench_die(path);
		at += (size_t)got;
	}
	close(fd);
	return cgn_clock_now() - began;
}

static uint64_t read_value(struct kvdisk *d, const char *store, uint64_t i, kvdisk_place at, size_t n,
	bool cold)
{
	struct block_key k = key_of(i);
	struct kvdisk_value v;
	struct cgn_err err = {0};
	struct iovec iov = {buffer, n};
	if (cold) {
		drop_all(store);
		char small[64];
		(void)snprintf(small, sizeof small, "%s/small", store);
		drop_all(small);
	}
	cgn_nsec began = cgn_clock_now();
	if (!cgn_ok(kvdisk_get(d, &k, at, &iov, 1, &v, &err)))
		bench_die(err.msg);
	return cgn_clock_now() - began;
}

static void bench_reads(struct json_out *o, size_t n)
{
	struct samples value = {0}, plain = {0}, again = {0};
	static kvdisk_place at[READS];
	struct kvdisk *d = open_disk("reads", 4096 * MIB, 1);
	for (uint64_t i = 0; i < READS; i++) {
		value_fill(buffer, n, i);
		at[i] = value_put(d, i, n);
		write_plain(i, n);
	}
	kvdisk_close(&d);
	d = open_disk("reads", 4096 * MIB, 1); /* No file is being written. */
	for (uint64_t r = 0; r < READS; r++) {
		uint64_t i = r * 389 % READS;
		samples_add(&value, read_value(d, "reads", i, at[i], n, true));
		samples_add(&again, read_value(d, "reads", i, at[i], n, false));
		samples_add(&plain, read_plain(i, n));
	}
	json_open(o, '{');
	json_key_u64(o, "bytes", n);
	put_times(o, "value_cold", &value);
	put_times(o, "plain_file_cold", &plain);
	put_times(o, "value_again", &again);
	json_close(o, '}');
	kvdisk_close(&d);
	folder_empty("reads");
	for (uint64_t i = 0; i < READS; i++) {
		char name[32];
		plain_name(name, i);
		(void)unlink(path_in(name));
	}
}

/* ---- ways to read ---- */
enum way { WAY_CACHE, WAY_DROP, WAY_DIRECT, WAYS };
static const char *const way_names[WAYS] = {"page cache", "page cache, dropped", "direct"};
#define WAY_THREADS 8
#define WAY_ROUNDS  4

struct reader {
	pthread_t thread;
	const char *path;
	enum way way;
	unsigned threads, me;
	size_t n;
	uint64_t count;
	struct samples times;
};

static void *read_records(void *arg)
{
	struct reader *r = arg;
	size_t record = r->n + 4 * KIB;
	int fd = open(r->path, O_RDONLY | (r->way == WAY_DIRECT ? O_DIRECT : 0));
	char *to =
		mmap(NULL, record, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (fd < 0 || to == MAP_FAILED)
		bench_die("ways");
	for (uint64_t i = r->me; i < r->count; i += r->threads) {
		off_t at = (off_t)(i * 389 % r->count * record);
		struct iovec iov[2] = {{to, 4 * KIB}, {to + 4 * KIB, r->n}};
		cgn_nsec began = cgn_clock_now();
		if (preadv(fd, iov, 2, at) != (ssize_t)record)
			bench_die("preadv");
		if (r->way == WAY_DROP)
			(void)posix_fadvise(fd, at, (off_t)record, POSIX_FADV_DONTNEED);
		samples_add(&r->times, cgn_clock_now() - began);
	}
	(void)munmap(to, record);
	close(fd);
	return NULL;
}

static uint64_t cpu_ns(void)
{
	struct rusage u;
	(void)getrusage(RUSAGE_SELF, &u);
	return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * CGN_SEC +
		(uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1000;
}

static uint64_t cached_bytes(int fd, size_t bytes)
{
	size_t pages = bytes / (size_t)sysconf(_SC_PAGESIZE), n = 0;
	void *m = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	unsigned char *in_core = malloc(pages);
	if (m == MAP_FAILED || in_core == NULL || mincore(m, bytes, in_core) != 0)
		bench_die("mincore");
	for (size_t i = 0; i < pages; i++)
		n += in_core[i] & 1;
	free(in_core);
	(void)munmap(m, bytes);
	return n * (uint64_t)sysconf(_SC_PAGESIZE);
}

struct way_sum {
	struct samples times;
	uint64_t wall, cpu, cached;
};

static void read_by(enum way way, unsigned threads, size_t n, uint64_t count, int fd, struct way_sum *sum)
{
	struct reader r[WAY_THREADS];
	const char *path = path_in("ways");
	if (posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0)
		bench_die("fadvise");
	uint64_t cpu = cpu_ns();
	cgn_nsec began = cgn_clock_now();
	for (unsigned i = 0; i < threads; i++) {
		r[i] = (struct reader){.path = path,
			.way = way,
			.threads = threads,
			.me = i,
			.n = n,
			.count = count};
		if (pthread_create(&r[i].thread, NULL, read_records, &r[i]) != 0)
			bench_die("thread");
	}
	for (unsigned i = 0; i < threads; i++) {
		(void)pthread_join(r[i].thread, NULL);
		for (size_t k = 0; k < samples_count(&r[i].times); k++) {
			cgn_nsec ns;
			memcpy(&ns, r[i].times.ns.p + k * sizeof ns, sizeof ns);
			samples_add(&sum->times, ns);
		}
		samples_fini(&r[i].times);
	}
	sum->wall += cgn_clock_now() - began;
	sum->cpu += cpu_ns() - cpu;
	sum->cached = cached_bytes(fd, count * (n + 4 * KIB));
}

static void bench_ways(struct json_out *o, size_t n, uint64_t count, unsigned threads)
{
	struct way_sum sum[WAYS] = {0};
	int fd = open(path_in("ways"), O_RDWR | O_CREAT | O_TRUNC, 0600);
	value_fill(buffer, n + 4 * KIB, n);
	for (uint64_t i = 0; i < count; i++)
		if (fd < 0 || write(fd, buffer, n + 4 * KIB) != (ssize_t)(n + 4 * KIB))
			bench_die("ways");
	if (fsync(fd) != 0)
		bench_die("fsync");
	for (unsigned round = 0; round < WAY_ROUNDS; round++)
		for (unsigned w = 0; w < WAYS; w++)
			read_by((w + round) % WAYS, threads, n, count, fd, &sum[(w + round) % WAYS]);
	for (enum way w = 0; w < WAYS; w++) {
		uint64_t reads = samples_count(&sum[w].times);
		json_open(o, '{');
		json_key_z(o, "way", way_names[w]);
		json_key_u64(o, "bytes", n);
		json_key_u64(o, "threads", threads);
		json_key_u64(o, "mib_per_second",
			(uint64_t)((double)(reads * n) / (double)MIB /
				((double)sum[w].wall / (double)CGN_SEC)));
		json_key_f64(o, "cpu_us_per_read", (double)sum[w].cpu / 1000 / (double)reads);
		json_key_u64(o, "page_cache_kib", sum[w].cached / KIB);
		put_times(o, "cold", &sum[w].times);
		json_close(o, '}');
	}
	close(fd);
	(void)unlink(path_in("ways"));
}

/* ---- writes ---- */
static uint64_t sent_to_disk(void)
{
	char line[128];
	unsigned long long n = 0;
	FILE *f = fopen("/proc/self/io", "r");
	if (f == NULL)
		bench_die("/proc/self/io");
	while (fgets(line, sizeof line, f) != NULL)
		if (sscanf(line, "write_bytes: %llu", &n) == 1)
			break;
	(void)fclose(f);
	return n;
}

static void bench_writes(struct json_out *o, const char *what, size_t n, uint64_t budget, uint64_t total,
	uint32_t small_bytes, bool reads)
{
	struct kvdisk *d = open_disk("writes", budget, small_bytes);
	struct kvdisk_stats st;
	uint64_t before = sent_to_disk(), count = total / n;
	struct samples cold = {0};
	kvdisk_place *at = calloc(count, sizeof *at);
	if (at == NULL)
		bench_die("memory");
	value_fill(buffer, n, 1);
	cgn_nsec began = cgn_clock_now();
	for (uint64_t i = 0; i < count; i++)
		at[i] = value_put(d, i, n);
	kvdisk_tend(d); /* The values are on the device then. */
	double seconds = (double)(cgn_clock_now() - began) / (double)CGN_SEC;
	kvdisk_stats(d, &st);
	uint64_t sent = sent_to_disk() - before;
	json_open(o, '{');
	json_key_z(o, "what", what);
	json_key_u64(o, "bytes", n);
	json_key_u64(o, "mib_per_second", (uint64_t)((double)total / seconds / (double)MIB));
	json_key_f64(o, "disk_bytes_per_byte_put", (double)sent / (double)total);
	json_key_f64(o, "file_bytes_per_live_byte", (double)st.bytes / ((double)st.entries * (double)n));
	if (reads) {
		for (uint64_t r = 0; r < READS; r++) {
			uint64_t i = r * 389 % count;
			samples_add(&cold, read_value(d, "writes", i, at[i], n, true));
		}
		put_times(o, "value_cold", &cold);
	}
	json_close(o, '}');
	free(at);
	kvdisk_close(&d);
	folder_empty("writes");
}

/* ---- boot ---- */
static uint64_t resident_bytes(void)
{
	unsigned long long size = 0, pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");
	if (f == NULL || fscanf(f, "%llu %llu", &size, &pages) != 2)
		bench_die("/proc/self/statm");
	(void)fclose(f);
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void bench_boot(struct json_out *o, uint64_t entries)
{
	struct kvdisk *d = open_disk("boot", 8192 * MIB, 0);
	value_fill(buffer, 256, 1);
	for (uint64_t i = 0; i < entries; i++)
		(void)value_put(d, i, 256);
	kvdisk_close(&d);
	sync();
	drop_all("boot/index");
	drop_all("boot/small");
	cgn_nsec began = cgn_clock_now();
	d = open_disk("boot", 8192 * MIB, 0);
	uint64_t disk_ns = cgn_clock_now() - began;
	kvdisk_close(&d);
	drop_all("boot/index");
	const struct kvstore_ssd_cfg ssd = {.dir = path_in("boot"), .bytes = 8192 * MIB};
	const struct kvstore_cfg cfg = {.ram_bytes = 2048 * MIB, .ssd = &ssd};
	struct kvstore *s = NULL;
	struct kvstore_stats st;
	struct cgn_err err = {0};
	uint64_t rss_before = resident_bytes();
	began = cgn_clock_now();
	if (!cgn_ok(kvstore_new(&cfg, &s, &err)))
		bench_die(err.msg);
	uint64_t store_ns = cgn_clock_now() - began, rss_after = resident_bytes();
	kvstore_stats(s, &st);
	json_open(o, '{');
	json_key_u64(o, "entries", st.tier[BLOCK_SSD].blocks);
	json_key_u64(o, "disk_open_ms", disk_ns / CGN_MSEC);
	json_key_u64(o, "store_open_ms", store_ns / CGN_MSEC);
	json_key_u64(o, "index_bytes_per_entry", st.index_bytes / st.tier[BLOCK_SSD].blocks);
	json_key_u64(o, "rss_bytes_per_entry", (rss_after - rss_before) / st.tier[BLOCK_SSD].blocks);
	json_close(o, '}');
	kvstore_free(&s);
	folder_empty("boot");
}

int main(int argc, char **argv)
{
	static const size_t thresholds[] = {8 * KIB, 32 * KIB, 64 * KIB, 128 * KIB, 256 * KIB};
	if (argc < 2 || strlen(argv[1]) >= sizeof folder || (mkdir(argv[1], 0700) != 0 && errno != EEXIST)) {
		fprintf(stderr, "usage: bench_kvdisk FOLDER [ENTRIES]\n");
		return 2;
	}
	strcpy(folder, argv[1]);
	buffer = aligned_alloc(4 * KIB, 4 * MIB); /* Aligned like values in pages. */
	if (buffer == NULL)
		bench_die("memory");
	log_setup("bench_kvdisk", LOG_WARN, LOG_HUMAN);
	struct cgn_buf b = {0};
	struct json_out o = json_out_to(&b);
	json_open(&o, '{');
	json_key(&o, "reads");
	json_open(&o, '[');
	bench_reads(&o, 64 * KIB);
	bench_reads(&o, MIB);
	json_close(&o, ']');
	json_key(&o, "ways");
	json_open(&o, '[');
	for (unsigned threads = 1; threads <= WAY_THREADS; threads += threads < 4 ? 3 : 4) {
		bench_ways(&o, 64 * KIB, 2000, threads);
		bench_ways(&o, MIB, 400, threads);
	}
	json_close(&o, ']');
	json_key(&o, "writes");
	json_open(&o, '[');
	bench_writes(&o, "with room", MIB, 4096 * MIB, 1024 * MIB, 0, false);
	bench_writes(&o, "full", MIB, 512 * MIB, 1024 * MIB, 0, false);
	bench_writes(&o, "full", 64 * KIB, 512 * MIB, 1024 * MIB, 0, false);
	json_close(&o, ']');
	json_key(&o, "in_rocksdb_or_slab");
	json_open(&o, '[');
	for (size_t i = 0; i < CGN_COUNT(thresholds); i++) {
		bench_writes(&o, "rocksdb", thresholds[i], 1024 * MIB, 256 * MIB, 1U << 20, true);
		bench_writes(&o, "slab", thresholds[i], 1024 * MIB, 256 * MIB, 1, true);
	}
	json_close(&o, ']');
	json_key(&o, "boot");
	bench_boot(&o, argc > 2 ? strtoull(argv[2], NULL, 10) : 1000000);
	json_close(&o, '}');
	printf("%s\n", cgn_buf_z(&b));
	cgn_buf_fini(&b);
	free(buffer);
	return 0;
}
