// SPDX-License-Identifier: Apache-2.0
// The library's time limits are for single reads and its replies have no bound. So the post runs in a thread of its own, and this one
// watches it: at the deadline, at a sign to give up, or where too much has come, it shuts the socket, and the library returns.
#include "tandem/reward/backend/http_post.h"

#include <fcntl.h>
#include <httplib.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <signal.h>
#include <sys/socket.h>

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>

#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/strings.h"
#include "tandem/reward/backend/process.h"

namespace tandem::reward {
namespace {

constexpr auto kTick = std::chrono::milliseconds(10);     // between looks at what has come
constexpr auto kPatience = std::chrono::milliseconds(500); // for the library to return from a socket that was shut

// What a socket has received so far, headers included; 0 where the kernel does not say. The number stands behind 128 bytes of the
// kernel's struct tcp_info, of which the C library's header has the beginning alone.
int64_t bytes_received(int socket) {
  constexpr size_t kPlace = 128;
  char info[256];
  socklen_t size = sizeof info;
  uint64_t received = 0;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, info, &size) == 0 && size >= kPlace + sizeof received)
    std::memcpy(&received, info + kPlace, sizeof received);
  return static_cast<int64_t>(received);
}

template <class Error>
bool is_of_the_certificate(Error error) {
  if constexpr (requires { Error::SSLServerHostnameVerification; }) {  // in later versions of the library
    if (error == Error::SSLServerHostnameVerification) return true;
  }
  return error == Error::SSLServerVerification;
}

// `verified` is what OpenSSL says of the chain; a chain that is right stands for another name.
HttpReply refused_certificate(long verified) {
  const std::string why = ::X509_verify_cert_error_string(verified);
  switch (verified) {
    case X509_V_OK:
      return {.problem = "the server's certificate is for another name", .remedy = "in the address the name that the certificate is for"};
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
      return {.problem = "the server's certificate is not trusted: " + why,
              .remedy = "SSL_CERT_FILE=FILE in the environment, a file that can be read, with that certificate or its signer's as PEM"};
    default:
      return {.problem = "the server's certificate is not valid: " + why, .remedy = "a server with a valid certificate"};
  }
}

// After a post in this thread, whose queue of OpenSSL's errors says more than the library does.
HttpReply failed(httplib::Error error, long verified) {
  if (is_of_the_certificate(error)) return refused_certificate(verified);
  const bool in_handshake = error == httplib::Error::SSLConnection;
  const unsigned long queued = ::ERR_peek_error();
  const int reason = in_handshake && ERR_GET_LIB(queued) == ERR_LIB_SSL ? ERR_GET_REASON(queued) : 0;
  if (reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_PACKET_LENGTH_TOO_LONG)
    return {.problem = "the server does not speak TLS",
            .remedy = "http:// in place of https://, or a server that speaks TLS",
            .is_plain = true};
  const bool of_the_end = reason == SSL_R_SHUTDOWN_WHILE_IN_INIT;  // the library's own, of a connection that is lost
  const char* const why = queued && !of_the_end ? ::ERR_reason_error_string(queued) : nullptr;
  std::string problem = in_handshake ? "TLS handshake failed" : httplib::to_string(error);
  if (why || in_handshake) problem += std::string(": ") + (why ? why : "connection lost");
  return {.problem = std::move(problem)};
}

}  // namespace

// Shared by the thread that posts and the one that waits.
struct HttpPoster::Call {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false, stopped = false, body_began = false, too_large = false;
  Descriptor socket;  // a second descriptor of the library's: its own is closed, and may be another file's, at any moment
  HttpReply reply;

  void connects_with(int fd) {
    std::lock_guard lock(mutex);
    socket = Descriptor(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (stopped) ::shutdown(fd, SHUT_RDWR);
  }
  void stop(const std::string& why) {
    stopped = true;
    if (reply.problem.empty()) reply.problem = why;
    if (socket.is_open()) ::shutdown(socket.number(), SHUT_RDWR);
  }
  bool begins(int status) {
    std::lock_guard lock(mutex);
    reply.status = status;
    return body_began = !stopped;
  }
  bool takes(const char* bytes, size_t count) {
    std::lock_guard lock(mutex);
    too_large = too_large || static_cast<int64_t>(reply.body.size() + count) > kMostReplyBytes;
    if (!too_large && !stopped) reply.body.append(bytes, count);
    return !too_large && !stopped;
  }
  void ends(httplib::Error error, long verified) {
    std::lock_guard lock(mutex);
    if (error != httplib::Error::Success && reply.problem.empty()) reply = failed(error, verified);
    done = true;
    changed.notify_all();
  }
  // With the mutex held.
  void look() {
    const int64_t most = body_began ? kMostHeaderBytes + kMostReplyBytes : kMostHeaderBytes;
    if (!socket.is_open() || bytes_received(socket.number()) <= most) return;
    too_large = true;
    stop("too much");
  }
};

HttpPoster::~HttpPoster() {
  for (std::thread& stray : strays_) stray.join();
}

void HttpPoster::give_up() noexcept {
  std::lock_guard lock(mutex_);
  ++num_given_up_;
}

// In a thread of its own.
void HttpPoster::ask(Call& call, const std::string& path, const std::string& body, double timeout_s) const {
  sigset_t broken_pipe;  // a server that goes away while it is written to is no reason to end the process
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
  httplib::Client client(server_);
  const auto seconds = static_cast<time_t>(std::ceil(timeout_s)) + 1;  // behind the deadline, which the other thread keeps
  client.set_connection_timeout(seconds);
  client.set_read_timeout(seconds);
  client.set_write_timeout(seconds);
  client.set_socket_options([&call](socket_t socket) { call.connects_with(socket); });
  httplib::Request request;
  request.method = "POST";
  request.path = path;
  request.set_header("Content-Type", "application/json");
  request.body = body;
  request.response_handler = [&call](const httplib::Response& response) { return call.begins(response.status); };
  request.content_receiver = [&call](const char* bytes, size_t count, uint64_t, uint64_t) { return call.takes(bytes, count); };
  const httplib::Result result = client.send(request);
  call.ends(result.error(), client.get_openssl_verify_result());
}

// Joins the thread, or keeps it for the destructor where it does not end: it asks a name server, and no one can call it back.
void HttpPoster::wait_for(std::thread thread, const std::shared_ptr<Call>& call) {
  std::unique_lock lock(call->mutex);
  if (call->changed.wait_for(lock, kPatience, [&] { return call->done; })) {
    lock.unlock();
    thread.join();
    return;
  }
  lock.unlock();
  std::lock_guard mine(mutex_);
  strays_.push_back(std::move(thread));
}

HttpReply HttpPoster::post(const std::string& path, const std::string& body, double timeout_s) {
  const Deadline deadline = Deadline::after_s(timeout_s);
  const auto num_given_up = [this] {
    std::lock_guard lock(mutex_);
    return num_given_up_;
  };
  const int64_t before = num_given_up();
  const auto call = std::make_shared<Call>();
  std::thread thread([this, call, path, body, timeout_s] { ask(*call, path, body, timeout_s); });
  {
    std::unique_lock lock(call->mutex);
    while (!call->changed.wait_for(lock, kTick, [&] { return call->done; }) && !call->stopped) {
      call->look();
      if (deadline.passed()) call->stop("not whole within " + std::to_string(timeout_s) + " s");
      else if (num_given_up() != before) call->stop("given up");
    }
  }
  wait_for(std::move(thread), call);
  std::lock_guard lock(call->mutex);
  if (call->too_large)
    throw UserError(where_, "answered with more than " + bytes_text(kMostReplyBytes) + ", or headers of more than " +
                    bytes_text(kMostHeaderBytes), "expected {\"scores\": [...]}");
  HttpReply reply = std::move(call->reply);
  if (!reply.problem.empty()) reply.status = 0;
  return reply;
}

}  // namespace tandem::reward
