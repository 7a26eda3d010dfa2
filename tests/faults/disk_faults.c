/*
 * A disk that fails on request: loaded with LD_PRELOAD into a process under test.
 *
 * Calls on files below DISK_FAULTS_DIRECTORY are looked up in the file
 * DISK_FAULTS_CONTROL, one rule a line, read again whenever its text has changed:
 *
 *     CALL SKIP COUNT ERRNO DELAY_US
 *
 * CALL is sync (fsync, fdatasync), write (write, pwrite), rename, or size (ftruncate,
 * posix_fallocate).  The first SKIP calls pass, the next COUNT ones wait for DELAY_US
 * microseconds and then fail with ERRNO, or are done if ERRNO is 0; the rest pass.
 *
 *     quota BYTES 0 ERRNO 0
 *
 * The files below the directory hold BYTES in sum; what would grow them beyond fails
 * with ERRNO.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define RULES_MAX 8

struct rule {
    char call[16];
    long long skip, count, error, delay_us, seen;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct rule rules[RULES_MAX];
static int rule_count;
static char control_text[1024];

static void *next(const char *name) { return dlsym(RTLD_NEXT, name); }

static void read_rules(void) {
    const char *path = getenv("DISK_FAULTS_CONTROL");
    char text[sizeof control_text] = "";
    int descriptor = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (descriptor >= 0) {
        ssize_t size = read(descriptor, text, sizeof text - 1);
        text[size > 0 ? size : 0] = 0;
        close(descriptor);
    }
    if (strcmp(text, control_text) == 0) return;
    strcpy(control_text, text);
    rule_count = 0;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line && rule_count < RULES_MAX;
         line = strtok_r(NULL, "\n", &rest)) {
        struct rule *rule = &rules[rule_count];
        memset(rule, 0, sizeof *rule);
        if (sscanf(line, "%15s %lld %lld %lld %lld", rule->call, &rule->skip,
                   &rule->count, &rule->error, &rule->delay_us) == 5)
            rule_count++;
    }
}

static int is_watched(const char *path) {
    const char *directory = getenv("DISK_FAULTS_DIRECTORY");
    return directory && strncmp(path, directory, strlen(directory)) == 0;
}

static int is_watched_descriptor(int descriptor) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size <= 0) return 0;
    path[size] = 0;
    return is_watched(path);
}

/* Return the errno that this call is to fail with, or 0. */
static int fault(const char *call) {
    long long delay_us = 0, error = 0;
    pthread_mutex_lock(&lock);
    read_rules();
    for (int i = 0; i < rule_count; i++) {
        struct rule *rule = &rules[i];
        if (strcmp(rule->call, call) != 0) continue;
        long long seen = rule->seen++;
        if (seen >= rule->skip && seen < rule->skip + rule->count) {
            delay_us = rule->delay_us;
            error = rule->error;
        }
    }
    pthread_mutex_unlock(&lock);
    if (delay_us) usleep(delay_us);
    return (int)error;
}

/* Return the errno that the file may not grow to size bytes with, or 0. */
static int shortage(int descriptor, off_t size) {
    long long quota = -1, used = 0;
    int error = 0;
    pthread_mutex_lock(&lock);
    read_rules();
    for (int i = 0; i < rule_count; i++)
        if (strcmp(rules[i].call, "quota") == 0) {
            quota = rules[i].skip;
            error = (int)rules[i].error;
        }
    pthread_mutex_unlock(&lock);
    if (quota < 0) return 0;
    struct stat status;
    if (fstat(descriptor, &status) != 0 || size <= status.st_size) return 0;
    const char *path = getenv("DISK_FAULTS_DIRECTORY");
    DIR *directory = path ? opendir(path) : NULL;
    if (!directory) return 0;
    struct stat each;
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
        if (fstatat(dirfd(directory), entry->d_name, &each, 0) == 0 &&
            S_ISREG(each.st_mode))
            used += each.st_size;
    closedir(directory);
    return used + (size - status.st_size) <= quota ? 0 : error;
}

static int refuses(const char *call, int descriptor, off_t size) {
    if (!is_watched_descriptor(descriptor)) return 0;
    int error = fault(call);
    if (!error && size >= 0) error = shortage(descriptor, size);
    errno = error ? error : errno;
    return error;
}

int fsync(int descriptor) {
    if (refuses("sync", descriptor, -1)) return -1;
    return ((int (*)(int))next("fsync"))(descriptor);
}

int fdatasync(int descriptor) {
    if (refuses("sync", descriptor, -1)) return -1;
    return ((int (*)(int))next("fdatasync"))(descriptor);
}

ssize_t write(int descriptor, const void *data, size_t size) {
    off_t at = lseek(descriptor, 0, SEEK_CUR);
    if (at >= 0 && refuses("write", descriptor, at + (off_t)size)) return -1;
    return ((ssize_t(*)(int, const void *, size_t))next("write"))(descriptor, data,
                                                                  size);
}

ssize_t pwrite(int descriptor, const void *data, size_t size, off_t at) {
    if (refuses("write", descriptor, at + (off_t)size)) return -1;
    return ((ssize_t(*)(int, const void *, size_t, off_t))next("pwrite"))(
        descriptor, data, size, at);
}

ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t at) {
    if (refuses("write", descriptor, at + (off_t)size)) return -1;
    return ((ssize_t(*)(int, const void *, size_t, off64_t))next("pwrite64"))(
        descriptor, data, size, at);
}

int ftruncate(int descriptor, off_t size) {
    if (refuses("size", descriptor, size)) return -1;
    return ((int (*)(int, off_t))next("ftruncate"))(descriptor, size);
}

int ftruncate64(int descriptor, off64_t size) {
    if (refuses("size", descriptor, size)) return -1;
    return ((int (*)(int, off64_t))next("ftruncate64"))(descriptor, size);
}

int posix_fallocate(int descriptor, off_t at, off_t size) {
    int error = refuses("size", descriptor, at + size);
    if (error) return error;
    return ((int (*)(int, off_t, off_t))next("posix_fallocate"))(descriptor, at, size);
}

int posix_fallocate64(int descriptor, off64_t at, off64_t size) {
    int error = refuses("size", descriptor, at + size);
    if (error) return error;
    return ((int (*)(int, off64_t, off64_t))next("posix_fallocate64"))(descriptor, at,
                                                                       size);
}

int rename(const char *from, const char *to) {
    int error = is_watched(to) ? fault("rename") : 0;
    if (error) {
        errno = error;
        return -1;
    }
    return ((int (*)(const char *, const char *))next("rename"))(from, to);
}
