#include "kv/prefix_index.h"

#include <algorithm>

#include "base/check.h"

namespace kd {

namespace {

int32_t common_length(std::span<const int32_t> a, std::span<const int32_t> b) {
    const size_t most = std::min(a.size(), b.size());
    const auto end = std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(most), b.begin());
    return static_cast<int32_t>(end.first - a.begin());
}

}  // namespace

PrefixIndex::PrefixIndex(int32_t page_size) : page_size_(page_size), nodes_(1) {
    KD_CHECK(page_size >= 1, "page size {}", page_size);
}

/// The first child whose first page is not less than `page`.
std::vector<PrefixIndex::NodeId>::const_iterator PrefixIndex::child_at(
    const Node& node, std::span<const int32_t> page) const {
    const auto less = [&](NodeId child, std::span<const int32_t> wanted) {
        const auto first =
            std::span(this->node(child).tokens).first(static_cast<size_t>(page_size_));
        return std::ranges::lexicographical_compare(first, wanted);
    };
    return std::lower_bound(node.children.begin(), node.children.end(), page, less);
}

PrefixIndex::Match PrefixIndex::find(std::span<const int32_t> tokens) const {
    const auto page_tokens = static_cast<size_t>(page_size_);
    Match match;
    while (!tokens.empty()) {
        const Node& parent = node(match.node);
        // What shares the longest beginning with the next page is one of the two neighbours.
        const auto page = tokens.first(std::min(page_tokens, tokens.size()));
        const auto at = child_at(parent, page);
        NodeId best = -1;
        int32_t longest = 0;
        for (const ptrdiff_t step : {0, -1}) {
            const bool there =
                step == 0 ? at != parent.children.end() : at != parent.children.begin();
            if (!there) continue;
            const NodeId child = *(at + step);
            const int32_t length = common_length(node(child).tokens, tokens);
            if (length > longest) {
                longest = length;
                best = child;
            }
        }
        if (best < 0) break;
        const int32_t whole = longest / page_size_;
        const Node& child = node(best);
        if (whole > 0) {
            match.node = best;
            match.in_node = whole;
            match.pages += whole;
        }
        if (static_cast<size_t>(whole) < child.pages.size()) {
            match.next_tokens = longest % page_size_;
            if (match.next_tokens > 0) {
                match.next_page = child.pages[static_cast<size_t>(whole)];
                match.next_node = best;
            }
            break;
        }
        tokens = tokens.subspan(static_cast<size_t>(longest));
    }
    return match;
}

void PrefixIndex::append_pages(NodeId id, std::vector<int32_t>& out) const {
    const auto begin = static_cast<ptrdiff_t>(out.size());
    for (; id != kRoot; id = node(id).parent) {
        out.insert(out.end(), node(id).pages.rbegin(), node(id).pages.rend());
    }
    std::reverse(out.begin() + begin, out.end());
}

PrefixIndex::NodeId PrefixIndex::add_node(NodeId parent) {
    NodeId id;
    if (unused_.empty()) {
        id = node_count();
        nodes_.emplace_back();
    } else {
        id = unused_.back();
        unused_.pop_back();
    }
    at(id).parent = parent;
    return id;
}

/// Puts the first `pages` pages of a node into a new parent of it, which is returned.
PrefixIndex::NodeId PrefixIndex::split(NodeId id, int32_t pages) {
    const NodeId upper_id = add_node(node(id).parent);
    Node& upper = at(upper_id);
    Node& lower = at(id);
    const auto tokens_end = lower.tokens.begin() + ptrdiff_t{pages} * page_size_;
    const auto pages_end = lower.pages.begin() + pages;
    upper.tokens.assign(lower.tokens.begin(), tokens_end);
    upper.pages.assign(lower.pages.begin(), pages_end);
    std::ranges::replace(at(upper.parent).children, id, upper_id);
    upper.children = {id};
    upper.locks = lower.locks;
    upper.used = lower.used;
    lower.tokens.erase(lower.tokens.begin(), tokens_end);
    lower.pages.erase(lower.pages.begin(), pages_end);
    lower.parent = upper_id;
    return upper_id;
}

void PrefixIndex::list(NodeId id) {
    if (is_leaf(id) && node(id).locks == 0) evictables_.emplace(node(id).used, id);
}

void PrefixIndex::unlist(NodeId id) {
    evictables_.erase({node(id).used, id});
}

PrefixIndex::NodeId PrefixIndex::lock(const Match& match) {
    NodeId id = match.node;
    if (static_cast<size_t>(match.in_node) < node(id).pages.size()) id = split(id, match.in_node);
    lock(id);
    return id;
}

void PrefixIndex::lock(NodeId id) {
    clock_ += 1;
    for (; id >= 0; id = node(id).parent) {
        if (node(id).locks == 0) {
            unlist(id);
            evictable_ -= static_cast<int32_t>(node(id).pages.size());
        }
        at(id).locks += 1;
        at(id).used = clock_;
    }
}

void PrefixIndex::unlock(NodeId id) {
    clock_ += 1;
    for (; id >= 0; id = node(id).parent) {
        Node& each = at(id);
        KD_CHECK(each.locks > 0, "node {} is not locked", id);
        each.locks -= 1;
        each.used = clock_;
        if (each.locks > 0) continue;
        evictable_ += static_cast<int32_t>(each.pages.size());
        list(id);
    }
}

PrefixIndex::Inserted PrefixIndex::insert(std::span<const int32_t> tokens,
                                          std::span<const int32_t> pages) {
    const auto page_tokens = static_cast<size_t>(page_size_);
    KD_CHECK(tokens.size() == pages.size() * page_tokens, "{} tokens for {} pages of {}",
             tokens.size(), pages.size(), page_size_);
    const Match match = find(tokens);
    NodeId id = lock(match);
    const auto known = static_cast<size_t>(match.pages);
    if (known < pages.size()) {
        const std::span<const int32_t> new_tokens = tokens.subspan(known * page_tokens);
        // A leaf that only the caller reads grows; everything else gets a child.
        if (!is_leaf(id) || node(id).locks > 1) {
            const NodeId parent = id;
            id = add_node(parent);
            const auto place = child_at(node(parent), new_tokens.first(page_tokens));
            at(parent).children.insert(place, id);
            at(id).locks = 1;
            at(id).used = clock_;
        }
        Node& leaf = at(id);
        leaf.tokens.insert(leaf.tokens.end(), new_tokens.begin(), new_tokens.end());
        leaf.pages.insert(leaf.pages.end(), pages.begin() + static_cast<ptrdiff_t>(known),
                          pages.end());
        pages_ += static_cast<int32_t>(pages.size() - known);
    }
    return {.node = id, .known_pages = match.pages};
}

/// A leaf that nobody locks.
void PrefixIndex::evict_leaf(NodeId id, std::vector<int32_t>& out) {
    const std::vector<int32_t>& pages = node(id).pages;
    out.insert(out.end(), pages.begin(), pages.end());
    pages_ -= static_cast<int32_t>(pages.size());
    evictable_ -= static_cast<int32_t>(pages.size());
    unlist(id);
    const NodeId parent = node(id).parent;
    const auto page = std::span(node(id).tokens).first(static_cast<size_t>(page_size_));
    at(parent).children.erase(child_at(node(parent), page));
    at(id) = {};
    unused_.push_back(id);
    list(parent);
}

void PrefixIndex::evict(int32_t pages, std::vector<int32_t>& out) {
    const size_t goal = out.size() + static_cast<size_t>(std::max(pages, 0));
    while (out.size() < goal && !evictables_.empty()) {
        evict_leaf(evictables_.begin()->second, out);
    }
}

void PrefixIndex::forget(std::span<const int32_t> tokens, std::vector<int32_t>& out) {
    for (NodeId id = find(tokens).node; is_leaf(id) && node(id).locks == 0;) {
        const NodeId parent = node(id).parent;
        evict_leaf(id, out);
        id = parent;
    }
}

void PrefixIndex::set_page(NodeId id, size_t index, int32_t page) {
    at(id).pages[index] = page;
}

void PrefixIndex::check() const {
    int32_t pages = 0, evictable = 0;
    size_t leaves = 0, alive = 0;
    std::vector<NodeId> open = {kRoot};
    while (!open.empty()) {
        const NodeId id = open.back();
        open.pop_back();
        alive += 1;
        const Node& each = node(id);
        const auto count = static_cast<int32_t>(each.pages.size());
        KD_CHECK((id == kRoot) == (count == 0), "node {} has {} pages", id, count);
        KD_CHECK(each.tokens.size() == each.pages.size() * static_cast<size_t>(page_size_),
                 "node {}: {} tokens in {} pages", id, each.tokens.size(), count);
        pages += count;
        if (each.locks == 0) evictable += count;
        if (each.locks == 0 && is_leaf(id)) {
            leaves += 1;
            KD_CHECK(evictables_.contains({each.used, id}), "leaf {} is not listed", id);
        }
        for (size_t i = 0; i < each.children.size(); ++i) {
            const NodeId child = each.children[i];
            KD_CHECK(node(child).parent == id, "node {} is a child of {} and of {}", child, id,
                     node(child).parent);
            KD_CHECK(node(child).locks <= each.locks, "node {} has more locks than its parent",
                     child);
            const auto page = std::span(node(child).tokens).first(static_cast<size_t>(page_size_));
            KD_CHECK(child_at(each, page) - each.children.begin() == static_cast<ptrdiff_t>(i),
                     "children of node {} are out of order", id);
            open.push_back(child);
        }
    }
    KD_CHECK(alive + unused_.size() == nodes_.size(), "{} nodes, {} unused, of {}", alive,
             unused_.size(), nodes_.size());
    KD_CHECK(pages == pages_, "{} pages, counted {}", pages_, pages);
    KD_CHECK(evictable == evictable_, "{} evictable pages, counted {}", evictable_, evictable);
    KD_CHECK(leaves == evictables_.size(), "{} leaves listed, counted {}", evictables_.size(),
             leaves);
}

}  // namespace kd
