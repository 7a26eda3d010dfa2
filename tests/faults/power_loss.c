/*
 * A disk with a cache that loses its power: loaded with LD_PRELOAD into a process.
 *
 * Before a write to a file below POWER_LOSS_DIRECTORY, what it replaces is appended to
 * the file POWER_LOSS_JOURNAL; after a successful fsync or fdatasync, that the file is on
 * the disk by now.  So whoever reads the journal backwards, once the process was killed,
 * can take back what was never said to be on the disk (tests/faults/power.py).
 *
 *     W path-length offset size old-size, path, old bytes
 *     S path-length 0 0 0, path
 *
 * What is written through a descriptor with O_DSYNC is on the disk when the call returns.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

struct head {
    uint64_t kind, path_length, offset, size, old_size;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int journal = -1;

static void *next(const char *name) { return dlsym(RTLD_NEXT, name); }

static void append(const void *data, size_t size) {
    const char *rest = data;
    while (size) {
        ssize_t done = syscall(SYS_write, journal, rest, size);
        if (done <= 0) abort();
        rest += done;
        size -= (size_t)done;
    }
}

/* Return the length of the path of a descriptor that is watched, or 0. */
static size_t watched(int descriptor, char *path) {
    const char *directory = getenv("POWER_LOSS_DIRECTORY");
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t size = directory ? readlink(link, path, PATH_MAX - 1) : -1;
    if (size <= 0) return 0;
    path[size] = 0;
    return strncmp(path, directory, strlen(directory)) == 0 ? (size_t)size : 0;
}

static void open_journal(void) {
    if (journal >= 0) return;
    const char *path = getenv("POWER_LOSS_JOURNAL");
    if (!path) abort();
    journal = (int)syscall(SYS_openat, AT_FDCWD, path,
                           O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (journal < 0) abort();
}

static void keep(int descriptor, off_t offset, size_t size) {
    char path[PATH_MAX];
    size_t length = watched(descriptor, path);
    if (!length || (fcntl(descriptor, F_GETFL) & O_DSYNC)) return;
    char *old = malloc(size ? size : 1);
    if (!old) abort();
    int reader = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    size_t had = 0;
    while (reader >= 0 && had < size) {
        ssize_t some = syscall(SYS_pread64, reader, old + had, size - had, offset + (off_t)had);
        if (some <= 0) break;
        had += (size_t)some;
    }
    if (reader >= 0) syscall(SYS_close, reader);
    struct head head = {'W', length, (uint64_t)offset, size, had};
    pthread_mutex_lock(&lock);
    open_journal();
    append(&head, sizeof head);
    append(path, length);
    append(old, had);
    pthread_mutex_unlock(&lock);
    free(old);
}

static int synced(int descriptor, int result) {
    char path[PATH_MAX];
    size_t length = result == 0 ? watched(descriptor, path) : 0;
    if (length) {
        struct head head = {'S', length, 0, 0, 0};
        pthread_mutex_lock(&lock);
        open_journal();
        append(&head, sizeof head);
        append(path, length);
        pthread_mutex_unlock(&lock);
    }
    return result;
}

static size_t total(const struct iovec *parts, int count) {
    size_t size = 0;
    for (int i = 0; i < count; i++) size += parts[i].iov_len;
    return size;
}

int fsync(int descriptor) {
    return synced(descriptor, ((int (*)(int))next("fsync"))(descriptor));
}

int fdatasync(int descriptor) {
    return synced(descriptor, ((int (*)(int))next("fdatasync"))(descriptor));
}

ssize_t write(int descriptor, const void *data, size_t size) {
    off_t at = lseek(descriptor, 0, SEEK_CUR);
    if (at >= 0) keep(descriptor, at, size);
    return ((ssize_t(*)(int, const void *, size_t))next("write"))(descriptor, data, size);
}

ssize_t pwrite(int descriptor, const void *data, size_t size, off_t at) {
    keep(descriptor, at, size);
    return ((ssize_t(*)(int, const void *, size_t, off_t))next("pwrite"))(descriptor, data,
                                                                          size, at);
}

ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t at) {
    keep(descriptor, at, size);
    return ((ssize_t(*)(int, const void *, size_t, off64_t))next("pwrite64"))(
        descriptor, data, size, at);
}

ssize_t pwritev(int descriptor, const struct iovec *parts, int count, off_t at) {
    keep(descriptor, at, total(parts, count));
    return ((ssize_t(*)(int, const struct iovec *, int, off_t))next("pwritev"))(
        descriptor, parts, count, at);
}

ssize_t pwritev64(int descriptor, const struct iovec *parts, int count, off64_t at) {
    keep(descriptor, at, total(parts, count));
    return ((ssize_t(*)(int, const struct iovec *, int, off64_t))next("pwritev64"))(
        descriptor, parts, count, at);
}

ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    off_t at = lseek(descriptor, 0, SEEK_CUR);
    if (at >= 0) keep(descriptor, at, total(parts, count));
    return ((ssize_t(*)(int, const struct iovec *, int))next("writev"))(descriptor, parts,
                                                                        count);
}
