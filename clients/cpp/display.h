// Deltas in colour, choices one after the other, and a closing line of statistics for each.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <ostream>
#include <string>

#include "specgate/v1/generation_service.pb.h"

namespace client {

class Display {
 public:
  // Writes to standard output; `ids` shows token ids instead of text.
  Display(bool ids, bool several);

  // Shows a delta at once where it is the turn of its choice, which is when all before it have ended.
  // Returns whether somebody still reads.
  bool show(const specgate::v1::GenerateStreamResponse& delta);

  // Shows what waits for its turn, after a stream that broke off.
  void show_rest();

 private:
  struct Choice {
    std::string text;
    bool finished = false;
  };

  std::string painted(const specgate::v1::GenerateStreamResponse& delta) const;
  std::string summary(const specgate::v1::GenerateStreamResponse& last) const;

  const bool ids_, several_, terminal_, color_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::map<uint32_t, Choice> choices_;
  uint32_t turn_ = 0;
};

}  // namespace client
