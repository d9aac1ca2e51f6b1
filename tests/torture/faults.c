// SPDX-License-Identifier: Apache-2.0
// Faults of a disk for the program it is preloaded into (LD_PRELOAD). TANDEM_FAULT says which, as KIND:PART:AFTER:COUNT: calls on files
// whose path contains PART fail, after the first AFTER of them, COUNT times (0: for ever). Kinds: enospc and eio of write and pwrite, short
// (half of each write), fsync (EIO), exchange (renameat2 with flags: EINVAL, as where the file system has no exchange), nfs (statfs says NFS), slow (a write
// takes 5 ms more), clock (the wall clock is AFTER days behind).
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

static char kind[16], part[256];
static long after, count, seen;

static void read_plan(void) {
  static int is_read;
  if (is_read) return;
  is_read = 1;
  const char* plan = getenv("TANDEM_FAULT");
  if (plan) sscanf(plan, "%15[^:]:%255[^:]:%ld:%ld", kind, part, &after, &count);
}

// Whether this call is one of those that fail.
static int is_due(const char* asked, const char* path) {
  read_plan();
  if (strcmp(kind, asked) != 0 || !strstr(path, part)) return 0;
  const long number = __atomic_fetch_add(&seen, 1, __ATOMIC_RELAXED);
  return number >= after && (count == 0 || number < after + count);
}

static int is_due_on(const char* asked, int fd) {
  char link[64], path[4096];
  read_plan();
  if (strcmp(kind, asked) != 0) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length <= 0) return 0;
  path[length] = 0;
  return is_due(asked, path);
}

// 0, or what the call should fail with; `size` is halved for a short write.
static int fault_of_write(int fd, size_t* size) {
  if (is_due_on("enospc", fd)) return ENOSPC;
  if (is_due_on("eio", fd)) return EIO;
  if (*size > 1 && is_due_on("short", fd)) *size /= 2;
  if (is_due_on("slow", fd)) usleep(5000);
  return 0;
}

ssize_t write(int fd, const void* bytes, size_t size) {
  static ssize_t (*real)(int, const void*, size_t);
  if (!real) *(void**)&real = dlsym(RTLD_NEXT, "write");
  const int fault = fault_of_write(fd, &size);
  if (fault) return errno = fault, -1;
  return real(fd, bytes, size);
}

ssize_t pwrite64(int fd, const void* bytes, size_t size, off64_t at) {
  static ssize_t (*real)(int, const void*, size_t, off64_t);
  if (!real) *(void**)&real = dlsym(RTLD_NEXT, "pwrite64");
  const int fault = fault_of_write(fd, &size);
  if (fault) return errno = fault, -1;
  return real(fd, bytes, size, at);
}
ssize_t pwrite(int fd, const void* bytes, size_t size, off_t at) { return pwrite64(fd, bytes, size, at); }

static int sync_or_fail(const char* name, int fd) {
  int (*real)(int);
  if (is_due_on("fsync", fd)) return errno = EIO, -1;
  *(void**)&real = dlsym(RTLD_NEXT, name);
  return real(fd);
}
int fsync(int fd) { return sync_or_fail("fsync", fd); }
int fdatasync(int fd) { return sync_or_fail("fdatasync", fd); }

int renameat2(int from_at, const char* from, int to_at, const char* to, unsigned flags) {
  static int (*real)(int, const char*, int, const char*, unsigned);
  if (!real) *(void**)&real = dlsym(RTLD_NEXT, "renameat2");
  if (flags && is_due("exchange", to)) return errno = EINVAL, -1;
  return real(from_at, from, to_at, to, flags);
}

int clock_gettime(clockid_t clock, struct timespec* now) {
  static int (*real)(clockid_t, struct timespec*);
  if (!real) *(void**)&real = dlsym(RTLD_NEXT, "clock_gettime");
  const int result = real(clock, now);
  read_plan();
  if (clock == CLOCK_REALTIME && strcmp(kind, "clock") == 0) now->tv_sec -= after * 86400;
  return result;
}

int statfs(const char* path, struct statfs* found) {
  static int (*real)(const char*, struct statfs*);
  if (!real) *(void**)&real = dlsym(RTLD_NEXT, "statfs");
  const int result = real(path, found);
  if (result == 0 && is_due("nfs", path)) found->f_type = 0x6969;
  return result;
}
